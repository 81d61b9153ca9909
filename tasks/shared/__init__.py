"""Packages that several steps use."""
