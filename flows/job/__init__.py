"""A job: its directory, lock, record, inputs and steps."""
