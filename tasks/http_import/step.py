"""The step ``http_import``."""

from tasks.http_import import checks
from tasks.http_import.importer import run
from tasks.shared.import_directory import IMPORT
from tasks.shared.step import Step, nothing

STEP = Step(
    name="http_import",
    run=run,
    reads=nothing,
    output=IMPORT,
    takes={"input": None},
    checks=checks.checks,
    space=checks.space,
)
