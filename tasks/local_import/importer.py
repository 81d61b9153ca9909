"""Import from a local directory (document 1, services.local_import)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from config import PipelineConfig
from tasks.local_import.scan import EMPTY, Scan, SourceFile, open_source, scan
from tasks.shared.errors import DataError, InputError, StorageError, storage_error
from tasks.shared.files.data_directory import as_shown, listed
from tasks.shared.files.intake import FileFacts, Intake
from tasks.shared.import_directory import ImportDirectory
from tasks.shared.meter import Meter
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tasks.shared.stop import Stop
from tasks.shared.work import for_each

# Compression has its own thread per file, and the disk is waited for at the end of each one: a second file fills
# those gaps. More only costs memory.
_THREADS = 2


def scan_source(config: PipelineConfig, given: str | None) -> Scan:
    """List the directory of the command line or of the configuration, without reading the files.

    Its problems have the references ``input-missing`` (there is no directory), ``input-not-found``,
    ``input-not-directory``, ``input-no-ndjson``, ``input-unreadable``, ``file-name``, ``empty-file``, ``name-clash``.
    """
    local = config.services.local_import
    named = given or local.dir
    if not named:
        problem = InputError(
            "input-missing",
            "local_import has no directory",
            context="services.local_import.dir",
            hint="set it, or give --dir DIR",
        )
        return Scan(Path(), problems=(problem,))
    return scan(Path(named).absolute(), recursive=local.recursive, exclude=config.jobs_dir.absolute())


def run(context: StepContext) -> StepReport:
    """Import the files of the directory into ``import/``, compressed or plain as the configuration says.

    Every line is checked to be a JSON object in UTF-8; contents stay as they are. Files that a run before this one
    finished are not read again. ``resources_in`` and ``resources_out`` count resources, those of a Bundle one by one.

    Raises the findings; ``DataError`` (``not-json``, ``not-object``, ``not-utf8`` with ``file:line``;
    ``resource-too-large``, ``source-error``, ``source-incomplete``, ``zst-truncated``, ``zst-corrupt``,
    ``empty-file``); ``StorageError`` (``source-changed``, ``source-unreadable``, ``disk-full`` …); ``Stopped``.
    """
    found = scan_source(context.config, context.given.input)
    for problem in found.problems:
        raise problem
    target = ImportDirectory(context)
    context.meter.expect(files=len(found.files), bytes=found.size)
    warnings = list(found.warnings)
    changed: list[str] = []
    empty: list[str] = []

    def one(file: SourceFile, stop: Stop) -> None:
        done = target.finished(file.base, bytes_in=file.size)
        if done is not None:
            if _changed(file, done.source_state):
                changed.append(file.name)
            context.meter.add(files=1, resources=done.resources)
            context.meter.advance(file.size, done.content_bytes, earlier=True)
            return
        try:
            target.add(_import_file(file, target, context, stop))
        except DataError as error:
            if error.reference != "empty-file":
                raise
            empty.append(file.name)
            context.meter.add(files=1)

    # What an earlier run imported of a file that is empty now is part of the job.
    kept = [file for file in found.empty if target.finished(file.base) is not None]
    changed += [file.name for file in kept]
    for_each(found.files, one, threads=_THREADS, stop=context.stop)
    if empty and len(empty) == len(found.files) and not kept:
        raise DataError(
            "empty-file",
            f"{len(empty)} files contain no resource" if len(empty) > 1 else "the file contains no resource",
            context=listed(found.directory, sorted(empty)),
            hint="was the export interrupted? export again, or import another directory",
        )
    if empty:
        warnings.append(f"{EMPTY}: {', '.join(as_shown(sorted(empty), most=5))}")
    if changed:
        warnings.append(
            "changed since they were imported, the job keeps what it has: "
            + ", ".join(as_shown(sorted(changed), most=5))
        )
    return target.result(warnings)


def _state(found: os.stat_result) -> str:
    """Return a text that changes when the source changes."""
    return f"{found.st_size}:{found.st_mtime_ns}"


def _changed(file: SourceFile, before: str) -> bool:
    """Return whether a source differs from the imported one; an unreadable source counts as unchanged."""
    try:
        return before != "" and _state(file.path.stat()) != before
    except OSError:
        return False


def _import_file(file: SourceFile, target: ImportDirectory, context: StepContext, stop: Stop) -> FileFacts:
    try:
        handle = open_source(file.path)
    except OSError as error:
        raise _unreadable(error, file) from None
    try:
        before = os.fstat(handle)
        if not stat.S_ISREG(before.st_mode):
            raise StorageError("source-changed", "this is no longer a regular file", context=str(file.path))
        source = _FileSource(handle, file, stop, context.meter)

        def described(facts: FileFacts) -> FileFacts:
            return msgspec.structs.replace(facts, bytes_in=source.bytes, source=file.name, source_state=_state(before))

        largest = context.config.limits.largest_resource
        with Intake(target.path, file.base, context.config.compression, name=file.name, largest=largest) as intake:
            source.intake = intake
            intake.run(source)
            # Somebody who still writes it would leave us a file that never existed like this.
            if source.bytes != before.st_size or _state(os.fstat(handle)) != _state(before):
                raise StorageError(
                    "source-changed",
                    "the file changed while it was imported",
                    context=str(file.path),
                    hint="wait until whatever writes it has finished, then continue the job",
                )
            facts = intake.commit(allow_empty=False, record=lambda facts: target.record(described(facts)))
            source.count()
    finally:
        os.close(handle)
    context.meter.add(files=1, resources=facts.resources)
    return described(facts)


def _unreadable(error: OSError, file: SourceFile) -> StorageError:
    cause = storage_error(error, file.path)
    return StorageError(
        "source-unreadable", f"cannot be read: {cause.message}", context=str(file.path), hint=cause.hint
    )


class _FileSource:
    """An open file as it is read, counted; the end of a run is noticed here."""

    def __init__(self, handle: int, file: SourceFile, stop: Stop, meter: Meter) -> None:
        self.bytes = 0
        self.intake: Intake | None = None
        self._handle = handle
        self._file = file
        self._stop = stop
        self._meter = meter
        self._counted = 0, 0

    def read(self, size: int, /) -> bytes:
        """Return the next up to ``size`` bytes."""
        self._stop.check()
        self.count()
        try:
            data = os.read(self._handle, size)
        except OSError as error:
            raise _unreadable(error, self._file) from None
        self.bytes += len(data)
        return data

    def count(self) -> None:
        """Count what was read since the last call, and the content that came of it."""
        before, self._counted = self._counted, (self.bytes, self.intake.content_bytes if self.intake else 0)
        self._meter.advance(self._counted[0] - before[0], self._counted[1] - before[1])
