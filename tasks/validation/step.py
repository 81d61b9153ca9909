"""``validation`` as a Prefect task."""

from tasks.shared.prefect_task import step_task
from tasks.validation.validation import run

validation = step_task("validation", run)
