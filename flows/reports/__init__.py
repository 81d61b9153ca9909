"""Output about a job: pages, the event file, the terminal. Never read back."""
