"""Everything that depends on Prefect's internals: its API, runs and servers."""
