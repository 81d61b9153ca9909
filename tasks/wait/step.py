"""The step ``wait``: pause until a person has looked at the data, then check the files that this person corrected.

Corrected files are in ``<source>_wait/``; after ``flattening`` they are tables. If there are any, the next step reads
them instead of the source. Two waits over the same source share the directory.
"""

from __future__ import annotations

from pathlib import Path

from tasks.shared.corrections import corrected_files, make_directory, wait_directory
from tasks.shared.errors import DataError
from tasks.shared.files.data_directory import listed, stored_bytes
from tasks.shared.files.line_check import LineCheck
from tasks.shared.files.ndjson import MIB, pieces
from tasks.shared.report import StepReport
from tasks.shared.step import Step, StepContext
from tasks.shared.stop import Stop


def run(context: StepContext) -> StepReport:
    """Check the corrected files after the approval (``flows/gate``). The report names their directory if there are any.

    Raises:
        DataError: the directory holds something that would not be read (``wait-foreign-files``), two forms of one file
            (``name-clash``), a file without a resource (``empty-file``) or one that is no NDJSON of FHIR resources (the
            errors of ``LineCheck``; ``zst-truncated``, ``zst-corrupt``).
        StorageError: the directory cannot be made or read.
        Stopped: the run is to stop.
    """
    directory = wait_directory(context.input_dir)
    make_directory(directory)
    tables = context.input.tables
    corrected = corrected_files(directory, tables=tables)
    if not corrected:
        return StepReport(details={"corrected": False})
    size = stored_bytes(corrected)
    context.meter.expect(files=len(corrected), bytes=size)
    lines = resources = 0
    empty: list[str] = []
    for file in corrected:
        count = (0, 0) if tables else _checked(file, context.stop, context.config.limits.max_line_mb * MIB)
        stored = stored_bytes([file])
        if not (stored if tables else count[0]):
            empty.append(file.name)
        lines, resources = lines + count[0], resources + count[1]
        context.meter.add(files=1, bytes=stored, resources=count[1])
    if empty:
        raise DataError(
            "empty-file",
            f"a corrected file contains no {'line' if tables else 'resource'}",
            context=listed(directory, empty),
            hint="complete it, or remove it if its data is to be left out, then continue the job",
        )
    return StepReport(
        files=len(corrected),
        resources_out=None if tables else resources,
        lines_out=None if tables else lines,
        bytes_out=size,
        output=directory.name,
        details={"corrected": True},
    )


def _checked(file: Path, stop: Stop, most: int) -> tuple[int, int]:
    """Return the number of lines of a file, each of at most ``most`` bytes, and its number of resources."""
    check = LineCheck(file.name, most)
    try:
        for piece in pieces(file):
            stop.check()
            check.feed(piece)
        check.finish()
    except DataError as error:
        if error.reference == "empty-file":
            return 0, 0
        hint = f"correct it in {file.parent}, then continue the job"
        raise DataError(
            error.reference,
            f"a corrected file cannot be used: {error.message}",
            context=error.context,
            hint=f"{error.hint}; {hint}" if error.hint else hint,
        ) from None
    return check.lines, check.resources


STEP = Step(
    name="wait",
    run=run,
)
