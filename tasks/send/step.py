"""``send`` as a Prefect task."""

from tasks.send.send import run
from tasks.shared.prefect_task import step_task

send = step_task("send", run)
