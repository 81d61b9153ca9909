"""``wait``: stop for a person who looks at the data, and go on with the data as that person left it.

``4-product.md`` §4: ``<source>_wait/`` is an empty directory for corrected files. The next step reads it if it holds
data files, else what the wait looked at. It fires once for each position.
"""

from __future__ import annotations

from pathlib import Path

from tasks.shared.errors import DataError
from tasks.shared.ndjson import data_files, read_lines
from tasks.shared.step import Parked, StepContext, StepResult


def wait_directory(source: Path) -> Path:
    """Where a person puts corrected files for what is in ``source``."""
    return source.with_name(f"{source.name}_wait")


def run(context: StepContext) -> StepResult:
    """Prepare the directory and park; once approved, say which data the next step reads.

    Raises:
        Parked: nobody has decided yet.
        DataError: a corrected file is empty or is no NDJSON.
    """
    directory = wait_directory(context.input_dir)
    directory.mkdir(mode=0o700, exist_ok=True)
    if context.decision is None:
        raise Parked(directory)
    corrected = data_files(directory)
    if not corrected:
        return StepResult(details={"corrected": False})
    context.progress.expect(files=len(corrected), bytes=sum(file.stat().st_size for file in corrected))
    lines = 0
    for file in corrected:
        count = 0
        for line in read_lines(file):
            context.stop.check()
            count += 1
            if not line.lstrip().startswith(b"{"):
                raise DataError(
                    "not-json", "a corrected file has a line that is no JSON object",
                    context=f"{file.name}:{count}", hint=f"mend it in {directory} and continue",
                )  # fmt: skip
        lines += count
        context.progress.add(files=1, bytes=file.stat().st_size, resources=count)
    size = sum(file.stat().st_size for file in corrected)
    return StepResult(
        files=len(corrected),
        resources_out=lines,
        lines_out=lines,
        bytes_out=size,
        output=directory.name,
        details={"corrected": True},
    )
