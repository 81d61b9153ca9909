"""What people see of a job: status, page, terminal, log. Never read back."""
