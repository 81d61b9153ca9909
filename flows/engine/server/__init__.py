"""The embedded Prefect server of a jobs directory: its start, its proof, the time that it lingers, its end."""
