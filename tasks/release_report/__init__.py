"""The release report: what a person sees before data leave (document 5)."""
