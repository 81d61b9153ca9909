"""``wait`` as a Prefect task: the custom pause task. The flow parks the run when it answers that it is paused."""

from tasks.shared.prefect_task import step_task
from tasks.wait.pause import run

wait = step_task("wait", run)
