"""The step: the files of a directory into ``import/``, compressed or plain as the configuration says."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tasks.local_import.scan import SourceFile, scan_source
from tasks.shared.errors import StorageError, storage_errors
from tasks.shared.file_work import FileWork, stat_identity
from tasks.shared.files.data_directory import as_shown
from tasks.shared.files.intake import Intake
from tasks.shared.files.ndjson import MIB
from tasks.shared.import_directory import (
    IMPORT,
    export_log_left_out,
    finish_import,
    import_report,
    import_work,
    imported,
)
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tasks.shared.stop import Stop
from tasks.shared.work import for_each

# Each file is compressed in a thread of its own, and waits for the disk at its end. A second file fills these gaps;
# more files would only cost memory.
_THREADS = 2
_PIECE = 1 << 18


def run(context: StepContext) -> StepReport:
    """Import the files of a directory unchanged; check that every line is a FHIR resource.

    Raises the problems of the directory; ``DataError`` of ``LineCheck``; ``StorageError`` (``source-changed``,
    ``disk-full`` …); ``Stopped``.
    """
    found = scan_source(context.config, context.given.input)
    for problem in found.problems:
        raise problem
    work, files = import_work(context), {file.base: file for file in found.files}
    inputs = {base: stat_identity(file.path) for base, file in files.items()}
    gone = [done.file for done in imported(context.job_dir) if done.file not in inputs]
    todo = work.begin(inputs)
    context.meter.expect(files=len(files), bytes=sum(file.size for file in files.values()))
    context.meter.skip(files=len(files) - len(todo), stored=sum(files[base].size for base in files.keys() - set(todo)))
    warnings = list(found.warnings)
    if gone:
        warnings.append(f"removed, because they are no longer in the directory: {', '.join(as_shown(gone, most=5))}")
    if work.again:
        warnings.append(f"imported again, because they have changed: {', '.join(as_shown(work.again, most=5))}")

    def one(base: str, stop: Stop) -> None:
        with export_log_left_out(files[base].name, warnings):
            _import(context, work, files[base], inputs[base], stop)

    for_each(todo, one, threads=_THREADS, stop=context.stop)
    return import_report(context, work.done(), warnings)


def _import(context: StepContext, work: FileWork, file: SourceFile, identity: str, stop: Stop) -> None:
    begun = time.monotonic()
    directory, most = context.job_dir / IMPORT, context.config.limits.max_line_mb * MIB
    with Intake(directory, file.base, context.config.compression, name=file.name, most=most) as intake:
        intake.run(_pieces(context, file, stop))
        # While somebody writes the file, our copy may have a content that the file never had.
        if stat_identity(file.path) != identity:
            hint = "wait until whatever writes it has finished, then continue the job"
            raise StorageError("source-changed", "the file changed while it was imported", context=file.name, hint=hint)
        done = finish_import(work, file.base, identity, intake, begun)
    context.meter.add(files=1, resources=done.counts["resources"])


def _pieces(context: StepContext, file: SourceFile, stop: Stop) -> Iterator[bytes]:
    with storage_errors(file.path), file.path.open("rb", buffering=0) as source:
        while piece := source.read(_PIECE):
            stop.check()
            context.meter.add(bytes=len(piece))
            yield piece
