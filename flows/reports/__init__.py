"""What people see of a job: status, page, terminal, log. The program never reads it back."""
