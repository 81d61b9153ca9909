"""``flattening`` as a Prefect task."""

from tasks.flattening.flattening import run
from tasks.shared.prefect_task import step_task

flattening = step_task("flattening", run)
