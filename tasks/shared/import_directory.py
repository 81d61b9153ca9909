"""The ``import/`` directory of a job, and what an import step knows of the files in it."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import msgspec

from config import CompressionConfig
from tasks.shared.errors import StorageError, storage_errors
from tasks.shared.fhir.sources import SourceNotes, missing_pages
from tasks.shared.files.data_directory import existing_file, is_consent_name
from tasks.shared.files.intake import FileFacts, FileLedger, facts_of
from tasks.shared.files.out_file import PART
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext

IMPORT = "import"
"""Name of the directory (document 1, "Job data")."""

# Document 1, "compression": 3-4x on the fastest level, 4-5x on the default one. The cautious end of each.
_SHRINKS = 3
_GROWS = 5


def stored_size(size: int, name: str, compression: CompressionConfig) -> int:
    """About what a file of ``size`` bytes takes in the job."""
    if name.lower().endswith(".zst"):
        return size if compression.enabled else size * _GROWS
    return size // _SHRINKS if compression.enabled else size


def consent_names_warning(bases: Iterable[str]) -> list[str]:
    """Return the warning about downloads that are named like consent audit files, if there are any."""
    named = [base for base in bases if is_consent_name(f"{base}.ndjson")]
    warning = f"imported as ordinary data, though named like consent audit files: {', '.join(named[:5])}"
    return [warning] if named else []


class ImportDirectory:
    """``<job>/import`` while an import step fills it. Thread-safe.

    An existing final file is complete (``4-product.md`` §4): what a run before this one finished is kept, unfinished
    parts of it are removed. The facts of finished files are kept in ``.results/<position>-files.ndjson``, so that
    counts survive a restart. Raises ``StorageError``.
    """

    def __init__(self, context: StepContext) -> None:
        self.path = context.job_dir / IMPORT
        self._lock = threading.Lock()
        self._stop = context.stop
        self._largest = context.config.limits.largest_resource
        self._files: dict[str, FileFacts] = {}
        self._new = 0
        with storage_errors(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for part in self.path.glob(f"*{PART}"):
                part.unlink()
        self._ledger = FileLedger(context.job_dir / ".results" / f"{context.position}-files.ndjson")

    def finished(self, base: str, *, bytes_in: int | None = None) -> FileFacts | None:
        """Return the facts of the complete file of that base name, if an earlier run finished it.

        Should its record be lost, the file is read once more; ``bytes_in`` is then what came in, as far as it is known.
        """
        path = existing_file(self.path, base)
        if path is None:
            return None
        facts = self._ledger.get(path)
        if facts is None:
            facts = facts_of(path, self._stop, largest=self._largest)
            facts = facts if bytes_in is None else msgspec.structs.replace(facts, bytes_in=bytes_in)
            self._ledger.add(facts)
        self.add(facts, earlier=True)
        return facts

    def record(self, facts: FileFacts) -> None:
        """Record a file that is about to get its final name."""
        self._ledger.add(facts)

    def add(self, facts: FileFacts, *, earlier: bool = False) -> None:
        """Count a recorded file that has its final name, perhaps since an ``earlier`` run."""
        with self._lock:
            self._new += 0 if earlier else facts.content_bytes
            self._files[facts.name] = facts

    def remove(self, facts: FileFacts) -> None:
        """Remove a complete file, which is another one's."""
        with storage_errors(self.path):
            (self.path / facts.name).unlink()
        with self._lock:
            del self._files[facts.name]

    def result(self, warnings: Iterable[str] = ()) -> StepReport:
        """Return the step's result: counts of resources, not lines; sizes received and stored.

        Raises ``StorageError`` ``import-empty``, and ``DataError`` ``source-incomplete``: pages of a search may be in
        several files, so whether all are there is known at the end.
        """
        files = list(self._files.values())
        if not files:
            raise StorageError("import-empty", "no file was imported", context=str(self.path))
        warnings = [*warnings, *self._notes(files).warnings()]
        lines, resources = sum(facts.lines for facts in files), sum(facts.resources for facts in files)
        return StepReport(
            files=len(files),
            resources_in=resources,
            resources_out=resources,
            lines_out=lines,
            bytes_in=sum(facts.bytes_in for facts in files),
            bytes_out=sum(facts.stored_bytes for facts in files),
            content=self._new,
            output=IMPORT,
            warnings=tuple(warnings),
            details={"content_bytes": sum(facts.content_bytes for facts in files)},
        )

    def _notes(self, files: Iterable[FileFacts]) -> SourceNotes:
        """Return the signs that the source is incomplete. Where pages of a search are missing, the files with the
        others are removed, so that a later run imports them anew."""
        notes = SourceNotes()
        noted = [(facts, facts.notes) for facts in files if facts.notes is not None]
        for _, found in noted:
            notes.add(found)
        if totals := notes.incomplete():
            paged = [
                (facts, min(found.pages[total].line for total in totals & found.pages.keys()))
                for facts, found in noted
                if not totals.isdisjoint(found.pages)
            ]
            for facts, _ in paged:
                self.remove(facts)
            first, line = min(paged, key=lambda pair: pair[0].name)
            raise missing_pages(f"{first.source or first.name}:{line}")
        return notes
