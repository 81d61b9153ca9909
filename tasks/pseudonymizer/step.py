"""The step ``pseudonymizer``."""

from tasks.pseudonymizer import checks
from tasks.pseudonymizer.outputs import OUTPUT
from tasks.pseudonymizer.pseudonymization import STATE, run
from tasks.shared.step import Step, same_as_input

STEP = Step(
    name="pseudonymizer",
    run=run,
    output=OUTPUT,
    folders=(STATE,),
    takes={"anonymization_config": checks.rules_unused},
    services=lambda config: [checks.service(config)],
    checks=checks.checks,
    warnings=checks.warnings,
    space=same_as_input,
)
