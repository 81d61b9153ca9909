"""A job: its directory, its lock, its record, what it takes in, what is decided about it."""
