"""Code of all three import steps: the directory, the record of a finished file, and the report of the step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

from config import CompressionConfig
from tasks.shared.errors import StorageError
from tasks.shared.file_work import Done, FileWork, digest, read_records, records_of
from tasks.shared.files.intake import Intake
from tasks.shared.files.line_check import ExportLogError
from tasks.shared.files.ndjson import MIB
from tasks.shared.http.answer import place
from tasks.shared.http.client import ServiceClient
from tasks.shared.http.download import Downloader
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tasks.shared.stop import Stop
from tasks.shared.work import for_each

IMPORT: Final = "import"
"""Directory of the imported files, below the job directory."""

# Measured: files shrink 3-4x on the fastest level, 4-5x on the default one. Both values overestimate the space.
_SHRINKS: Final = 3
_GROWS: Final = 5


def stored_size(size: int, name: str, compression: CompressionConfig) -> int:
    """Return an estimate of the bytes that a file of ``size`` bytes takes in the job."""
    if name.lower().endswith(".zst"):
        return size if compression.enabled else size * _GROWS
    return size // _SHRINKS if compression.enabled else size


def import_work(context: StepContext) -> FileWork:
    """Return the file work of an import. It has no terms: a result depends on its source alone."""
    return FileWork(context.job_dir, context.position, context.job_dir / IMPORT)


def imported(job_dir: Path | None) -> list[Done]:
    """Return the records of the first step, which is the import; none without a job."""
    return read_records(records_of(job_dir, 1)) if job_dir is not None else []


@contextmanager
def export_log_left_out(name: str, warnings: list[str]) -> Iterator[None]:
    """Turn the error for the log of an export tool into a warning. A log line after line 1 stays an error."""
    try:
        yield
    except ExportLogError as error:
        if not (error.context or "").endswith(":1"):
            raise
        warnings.append(f"not imported, the log of an export tool: {name}")


def download_all(
    context: StepContext,
    client: ServiceClient,
    wanted: Mapping[str, str],
    *,
    stall: timedelta,
    threads: int,
    warnings: list[str],
    trusted: Callable[[str], bool | None] = lambda _: None,
    ready: Callable[[str, Stop], None] = lambda _url, _stop: None,
) -> list[Done]:
    """Download ``wanted`` (base name → URL), at most ``threads`` at once; return the records of all files.

    A file whose URL was downloaded before is not fetched again. ``trusted(url)`` returns the ``credentials`` argument
    of ``Downloader.fetch``; ``ready(url, stop)`` waits until the file is available. Raises what ``fetch`` raises.
    """
    work, meter, config = import_work(context), context.meter, context.config
    inputs = {base: digest(url) for base, url in wanted.items()}
    todo = work.begin(inputs)
    meter.expect(files=len(wanted))
    meter.add(files=len(wanted) - len(todo))
    most = config.limits.max_line_mb * MIB
    downloader = Downloader(client, config.compression, most, stall.total_seconds())

    def one(base: str, stop: Stop) -> None:
        url, begun = wanted[base], time.monotonic()
        ready(url, stop)
        with (
            export_log_left_out(place(url), warnings),
            downloader.fetch(url, context.job_dir / IMPORT, base, stop, trusted(url)) as intake,
        ):
            done = finish_import(work, base, inputs[base], intake, begun)
            meter.add(files=1, resources=done.counts["resources"])

    for_each(todo, one, threads=threads, stop=context.stop)
    return work.done()


def finish_import(work: FileWork, base: str, identity: str, intake: Intake, begun: float) -> Done:
    """Record and publish an imported file; ``begun`` is the value of ``time.monotonic()`` at its start."""
    check = intake.check
    told = f"{base}: {check.outcomes} OperationOutcomes as lines of their own: did the server return everything?"
    counts = {"lines": check.lines, "resources": check.resources, "content": check.bytes, "taken": intake.taken}
    done = Done(
        file=base,
        identity=identity,
        counts=counts,
        tallies={"types": dict(check.types)},
        warnings=(told,) if check.outcomes else (),
        seconds=round(time.monotonic() - begun, 3),
        patients=check.patients,
    )
    return work.finish(done, intake.part)


def import_report(context: StepContext, done: Iterable[Done], warnings: Iterable[str] = ()) -> StepReport:
    """Return the report of an import, the sum of its records. Raises ``StorageError`` (``import-empty``)."""
    files = list(done)
    if not files:
        raise StorageError("import-empty", "no file was imported", context=str(context.job_dir / IMPORT))
    total: Counter[str] = Counter()
    for one in files:
        total.update(one.counts | {"stored": one.size})
    return StepReport(
        files=len(files),
        resources_in=total["resources"],
        resources_out=total["resources"],
        lines_out=total["lines"],
        bytes_in=total["taken"],
        bytes_out=total["stored"],
        output=IMPORT,
        warnings=tuple(dict.fromkeys([*warnings, *(text for one in files for text in one.warnings)])),
        details={"content_bytes": total["content"]},
    )
