"""The flow, the job, the command line: the thin Prefect edge and what people use."""
