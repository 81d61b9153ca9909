"""Production use of the pipeline (serve, worker, server, notifications), and the sandbox services."""
