"""The flow, the job and the command line, on top of the steps."""
