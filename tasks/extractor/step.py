"""The step ``extractor``."""

from tasks.extractor import checks
from tasks.extractor.client import service
from tasks.extractor.extraction import run
from tasks.extractor.submission import DIRECTORY, begun
from tasks.shared.import_directory import IMPORT
from tasks.shared.step import Step, nothing

STEP = Step(
    name="extractor",
    run=run,
    reads=nothing,
    output=IMPORT,
    folders=(DIRECTORY,),
    takes={"crtdl": None, "input": None, "patients": checks.patients_unused},
    needs=checks.needs,
    services=lambda config: [service(config)],
    checks=checks.checks,
    warnings=checks.warnings,
    holds=begun,
)
