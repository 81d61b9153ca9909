"""How the pipeline is run for real: serving it, and the sandbox services."""
