"""The step ``pseudonymizer``."""

from tasks.pseudonymizer.outputs import OUTPUT
from tasks.pseudonymizer.pseudonymization import STATE, run
from tasks.shared.step import Step

STEP = Step(
    name="pseudonymizer",
    summary="pseudonymize through the pseudonymization service",
    run=run,
    output=OUTPUT,
    folders=(STATE,),
)
