"""The step ``extractor``."""

from tasks.extractor.extraction import run
from tasks.extractor.submission import DIRECTORY
from tasks.shared.import_directory import IMPORT
from tasks.shared.step import Step, nothing

STEP = Step(
    name="extractor",
    summary="import through the extraction server",
    run=run,
    reads=nothing,
    output=IMPORT,
    folders=(DIRECTORY,),
)
