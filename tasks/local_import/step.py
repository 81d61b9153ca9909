"""The step ``local_import``."""

from tasks.local_import import checks
from tasks.local_import.importer import run
from tasks.shared.import_directory import IMPORT
from tasks.shared.step import Step, nothing

STEP = Step(
    name="local_import",
    run=run,
    reads=nothing,
    output=IMPORT,
    takes={"input": None},
    checks=checks.checks,
    warnings=checks.warnings,
    space=checks.space,
)
