"""What is told of a job: pages, the event file, traces, the terminal. Never read back."""
