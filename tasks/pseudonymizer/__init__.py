"""Pseudonymization by a service, line by line."""
