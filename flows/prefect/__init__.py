"""Everything that talks to Prefect: its API, flow runs, and the local server. Only ``runs`` imports Prefect."""
