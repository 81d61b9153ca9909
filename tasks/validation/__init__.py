"""The validation step: data is checked against profiles by a service, and passed through (document 3 §6)."""
