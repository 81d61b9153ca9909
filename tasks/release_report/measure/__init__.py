"""The measuring pass: what is in files, counted in patients."""
