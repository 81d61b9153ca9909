"""The step ``wait``: the custom pause task. The flow parks the run when it answers that it is paused."""

from tasks.shared.step import Step
from tasks.wait.pause import run

STEP = Step(
    name="wait",
    run=run,
)
