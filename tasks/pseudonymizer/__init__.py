"""The step ``pseudonymizer``: every resource goes through the pseudonymization service (document 3 §4)."""
