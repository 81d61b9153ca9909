"""A stand-in for the deployed pseudonymization service (document 3 §4)."""
