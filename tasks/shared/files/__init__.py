"""Files of a job: names, how they are written, checked, compressed and counted."""
