"""The flow ``unfinished``, which a deployment runs every few minutes (``deployments/prefect.yaml``)."""

from prefect import flow, get_run_logger

from flows.job.find import opened
from flows.job.unfinished import look
from flows.jobs_dir import load


@flow(name="unfinished", persist_result=False)
def unfinished(config: str) -> None:
    """Put the jobs of a schedule that were cut off back to their worker.

    Args:
        config: Path of the YAML configuration file that names the jobs directory.
    """
    with opened(load(config)) as session:
        for line in look(session, go=True):
            get_run_logger().warning(line)
