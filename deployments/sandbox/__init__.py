"""Embedded stand-ins for the services the pipeline talks to: for trials and tests, not for production."""
