"""A wait and the release report: files the reviewer saw, decisions, corrections, and the rules for a release."""
