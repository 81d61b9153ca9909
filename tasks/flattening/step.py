"""The step ``flattening``."""

from tasks.flattening.flattening import STATE, run
from tasks.flattening.resume import DEFINITIONS, OUTPUT
from tasks.shared.step import Step

STEP = Step(
    name="flattening",
    summary="transform to CSV",
    run=run,
    output=OUTPUT,
    tables=True,
    folders=(DEFINITIONS, STATE),
)
