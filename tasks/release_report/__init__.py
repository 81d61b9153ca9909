"""The release report: what a person sees before data leave the house (document 5)."""
