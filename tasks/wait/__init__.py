"""``wait``: a pause for manual inspection (document 1, "pipeline")."""
