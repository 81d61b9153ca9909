"""Prefect's insides: its API, runs, servers. Nothing of them is known elsewhere."""
