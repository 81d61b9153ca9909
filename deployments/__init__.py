"""The sandbox services, and the files that run Sluice with a server and workers of Prefect."""
