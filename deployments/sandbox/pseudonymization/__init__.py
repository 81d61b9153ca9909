"""The deployed pseudonymization service, as far as rule files in use need it."""
