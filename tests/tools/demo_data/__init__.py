"""Makes the demo data of the sandbox."""
