"""HTTP to services: one client, its answers, failures, retries and credentials."""
