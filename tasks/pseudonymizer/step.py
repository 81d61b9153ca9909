"""``pseudonymizer`` as a Prefect task."""

from tasks.pseudonymizer.pseudonymization import run
from tasks.shared.prefect_task import step_task

pseudonymizer = step_task("pseudonymizer", run)
