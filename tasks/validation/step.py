"""The step ``validation``."""

from tasks.shared.step import Step
from tasks.validation import checks
from tasks.validation.gate import gate
from tasks.validation.validation import REPORTS, run

STEP = Step(
    name="validation",
    run=run,
    folders=(REPORTS,),
    services=lambda config: [checks.service(config)],
    gate=gate,
)
