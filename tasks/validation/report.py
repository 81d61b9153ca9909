"""The report of one file, and what the ledger knows of it (document 3 §6).

``<base>.validation.ndjson`` holds the OperationOutcomes about the chunks of a file, in their order, each as it was
answered but on one line; it is called ``….part`` until it is complete. Under ``.state/`` lie the file's rows of the
summary and the ledger: which resources were asked about, how long report and rows were then, and the counts. So a run
that was interrupted goes on behind the last chunk that all three know, and a finished file's findings count without
asking again.

``summary.csv`` has every issue with file, line, ``Type/id``. It is put together from the rows of the files, so a
million findings are never in memory. It quotes the service's messages, for the person who mends the data; results,
artifacts and logs have their codes only.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import shutil
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tasks.shared.blanked import blanked
from tasks.shared.errors import ReconciliationError, StorageError, storage_errors
from tasks.shared.files.data_directory import base_name
from tasks.shared.files.ledger import Ledger
from tasks.shared.files.out_file import PART, OutFile, PartFile, as_text, can_continue, part_of, publish, size_of
from tasks.shared.files.private_file import open_private
from tasks.validation.chunks import ValidationChunk, ValidationFacts
from tasks.validation.client import ChunkOutcome
from tasks.validation.findings import Tally, ValidationIssue

SUFFIX: Final = ".validation.ndjson"
STATE: Final = ".state"
WRITE_SECONDS: Final = 0.25
"""Answers are written down at most this often, in seconds: for a fast service that is most of the work. They are what
a killed process loses."""

_WRITE_BYTES: Final = 1024 * 1024
_REPORT, _ROWS = "report_bytes", "row_bytes"

COLUMNS: Final = (
    "file",
    "line",
    "entry",
    "resource",
    "severity",
    "code",
    "message_id",
    "location",
    "message",
)


class Reports:
    """The ``validation/`` directory of one step instance. Raises ``StorageError``."""

    def __init__(self, directory: Path, files: Iterable[Path]) -> None:
        self.directory = directory
        self.state = directory / STATE
        self.names = _names(files)
        with storage_errors(directory):
            for place in (directory, self.state):
                place.mkdir(mode=0o700, exist_ok=True)
            self._remove_strangers()

    def report(self, name: str) -> Path:
        """Return the path of the report of a data file."""
        return self.directory / f"{self.names[name]}{SUFFIX}"

    def fragment(self, name: str) -> Path:
        """Return the path of the CSV rows of a data file."""
        return self.state / f"{self.names[name]}.csv"

    def _remove_strangers(self) -> None:
        """Reports about files that are no longer part of the input would be taken for current ones."""
        expected = {self.report(name).name for name in self.names} | {self.fragment(name).name for name in self.names}
        for path in [*self.directory.glob(f"*{SUFFIX}*"), *self.state.glob("*.csv*")]:
            if path.name.removesuffix(PART) not in expected:
                path.unlink()


class FileReport:
    """The report of ``path`` in the making. Used by one thread.

    ``complete`` says that an earlier run finished it; else ``done`` items of the file were validated before, and
    ``add`` goes on behind them. ``close`` leaves everything in place for the next run. Raises ``StorageError``.
    """

    def __init__(self, reports: Reports, ledger: Ledger, path: Path) -> None:
        self.path = path
        self._ledger = ledger
        self._final = reports.report(path.name)
        self._part = part_of(self._final)
        self._rows = reports.fragment(path.name)
        self._open: tuple[OutFile, OutFile] | None = None
        identity = _identity(path)
        self.account = ledger.account(path.name, identity)
        self.complete = self._finished()
        if not self.complete and not self._resumable():
            ledger.account(path.name, "")  # what it knew is void
            self.account = ledger.account(path.name, identity)
            self._final.unlink(missing_ok=True)
        self.done = len(self.account.done)
        self._pending = _Pending(self.done)
        self._written = time.monotonic()

    def add(self, chunk: ValidationChunk, outcomes: Iterable[ChunkOutcome]) -> None:
        """Take in what was answered about the next chunk."""
        pending = self._pending
        tally = Tally()
        for outcome in outcomes:
            issues = outcome.issues()
            tally.add(issues, outcome.place)
            pending.rows += rows(self.path.name, outcome, issues)
            pending.report += outcome.line + b"\n"
        pending.counts.update(_counts(tally))
        pending.stop = chunk.first + len(chunk)
        if time.monotonic() - self._written >= WRITE_SECONDS or len(pending.report) + len(pending.rows) >= _WRITE_BYTES:
            self._write()

    def finish(self, facts: ValidationFacts) -> None:
        """Finish a file that was read and answered completely. Raises ``ReconciliationError`` if it was not."""
        self._write()
        if len(self.account.done) != facts.resources:
            raise ReconciliationError(
                "validation-counts",
                f"validation: {facts.resources:,} resources were read, but {len(self.account.done):,} validated",
                context=self.path.name,
                hint="this is a defect; continuing the job asks about what the ledger does not know",
            )
        for file in self._files():
            file.sync()
            file.close()
        self._ledger.complete(
            self.path.name,
            {"lines": facts.lines, "bytes": facts.bytes, "resources": facts.resources, "skipped": facts.skipped},
        )
        # The report's name is the sign that the file is done.
        publish((self._part, self._final))
        self.complete = True

    def close(self) -> None:
        """Write down what was answered, and close the files; they are kept."""
        # What cannot be written down is asked about again; the error that led here is the one to report.
        with contextlib.suppress(StorageError):
            self._write()
        for file in self._open or ():
            file.close()
        self._open = None

    def _write(self) -> None:
        pending, self._pending = self._pending, _Pending(self._pending.stop)
        self._written = time.monotonic()
        if pending.start == pending.stop:
            return
        # Counted before, and kept without credentials.
        pending.report, pending.rows = blanked(pending.report), blanked(pending.rows)
        report, fragment = self._files()
        report.write(pending.report)
        fragment.write(pending.rows)
        pending.counts.update({_REPORT: len(pending.report), _ROWS: len(pending.rows)})
        # Last: what the ledger does not know is cut off again.
        self._ledger.done(self.path.name, range(pending.start, pending.stop), **pending.counts)

    def _files(self) -> tuple[OutFile, OutFile]:
        if self._open is None:
            counts = self.account.counts
            report = OutFile(self._part, counts[_REPORT])
            try:
                self._open = report, OutFile(self._rows, counts[_ROWS])
            except BaseException:
                report.close()
                raise
        return self._open

    def _finished(self) -> bool:
        counts = self.account.counts
        if self.account.complete is None or size_of(self._rows) != counts[_ROWS]:
            return False
        if size_of(self._final) == counts[_REPORT]:
            return True
        if size_of(self._part) != counts[_REPORT]:
            return False
        publish((self._part, self._final))  # the run before was killed just there
        return True

    def _resumable(self) -> bool:
        if self.account.complete is not None or size_of(self._final) >= 0:
            return False
        needed = ((self._part, self.account.counts[_REPORT]), (self._rows, self.account.counts[_ROWS]))
        return all(not size or can_continue(path, size) for path, size in needed)


class _Pending:
    """The answers that are not written yet, from item ``start`` up to ``stop`` of the file."""

    def __init__(self, start: int) -> None:
        self.start = self.stop = start
        self.report = b""
        self.rows = b""
        self.counts: Counter[str] = Counter()


def _names(files: Iterable[Path]) -> dict[str, str]:
    """Base names of the reports by file name; a file whose base is taken by one before it uses its whole name."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for file in files:
        base = base_name(file.name)
        name = file.name if base.casefold() in taken else base
        taken.add(name.casefold())
        names[file.name] = name
    return names


def _identity(path: Path) -> str:
    with storage_errors(path), open_private(path) as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _counts(tally: Tally) -> dict[str, int]:
    """Return a tally in the form of the ledger: numbers under names."""
    counts = {"issues": tally.issues, "findings": tally.findings, "resources": tally.resources}
    for what, found in (("severity", tally.severities), ("type", tally.types), ("code", tally.codes)):
        counts.update({f"{what} {name}": count for name, count in found.items()})
    return counts


def rows(file: str, outcome: ChunkOutcome, issues: Iterable[ValidationIssue]) -> bytes:
    """Return the issues of one outcome as CSV, with one line for each entry that an issue names.

    An issue that names none concerns the Bundle as a whole, so it gets the range of lines that the Bundle holds.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for issue in issues:
        what = (issue.severity, issue.code, issue.message_id)
        message = " ".join(issue.text.split())
        places = [(element, outcome.place(entry)) for entry, element in issue.entries.items()]
        known = [(element, place) for element, place in places if place is not None]
        for element, place in known:
            index = "" if place.entry is None else place.entry
            where = (file, place.line, index, place.key)
            _write(writer, *where, *what, f"{place.type}{element}", message)
        if not known:
            first, last = outcome.span
            lines = f"{first}-{last}" if first < last else first
            _write(writer, file, lines, "", "", *what, issue.elsewhere, message)
    # A lone surrogate, which JSON can spell, is no Unicode text.
    return text.getvalue().encode("utf-8", "backslashreplace")


def _write(writer: Any, *cells: int | str) -> None:
    writer.writerow(as_text(cell) if isinstance(cell, str) else cell for cell in cells)


def assemble(target: Path, fragments: Iterable[Path]) -> None:
    """Write ``summary.csv`` from the fragments, in their order. Raises ``StorageError``."""
    with PartFile(target) as part:
        part.write((",".join(COLUMNS) + "\n").encode())
        for fragment in fragments:
            with storage_errors(fragment):
                file = open_private(fragment)
            with file:
                shutil.copyfileobj(file, part, 1 << 20)
        part.commit()
