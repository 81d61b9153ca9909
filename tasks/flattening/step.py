"""The step ``flattening``."""

from tasks.flattening import checks
from tasks.flattening.flattening import STATE, run
from tasks.flattening.resume import DEFINITIONS, OUTPUT
from tasks.shared.step import Step, same_as_input

STEP = Step(
    name="flattening",
    run=run,
    output=OUTPUT,
    tables=True,
    folders=(DEFINITIONS, STATE),
    takes={"crtdl": None},
    needs=checks.needs,
    services=lambda config: [checks.service(config)],
    checks=checks.checks,
    warnings=checks.warnings,
    space=same_as_input,
)
