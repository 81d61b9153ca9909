"""The report of one file, ``<base>.validation.ndjson``, and its rows of ``summary.csv`` (docs/services.md).

The report holds the OperationOutcomes about the chunks of a file, in their order, each on one line. ``summary.csv`` has
every issue with file, line, ``Type/id``. It is joined from the rows of the files, so a million findings are never in
memory. It quotes the service's messages, for the person who corrects the data; reports and logs have codes only.
"""

from __future__ import annotations

import csv
import io
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tasks.shared.blanked import blanked
from tasks.shared.errors import storage_errors
from tasks.shared.file_work import Done, FileWork
from tasks.shared.files.part_file import PartFile, publish
from tasks.shared.log import logger
from tasks.shared.meter import Meter
from tasks.shared.units import as_text, human_count
from tasks.validation.chunks import FileItems
from tasks.validation.findings import Tally, ValidationIssue, read_outcome
from tasks.validation.service import ChunkOutcome

SUFFIX: Final = ".validation.ndjson"
SUMMARY: Final = "summary.csv"
ROWS: Final = ".rows"
"""Directory with the rows of each file, below the one of the reports."""

COLUMNS: Final = ("file", "line", "entry", "resource", "severity", "code", "message_id", "location", "message")


class FileReport:
    """Writes the report of one file, whose resources are ``items``. For one thread."""

    def __init__(self, work: FileWork, meter: Meter, directory: Path, items: FileItems, identity: str) -> None:
        self._work = work
        self._meter = meter
        self._items = items
        self._identity = identity
        self._tally = Tally()
        self._begun = time.monotonic()
        self._part = PartFile(directory / f"{items.base}{SUFFIX}")
        self._rows = PartFile(rows_of(directory, items.base))

    def take(self, outcomes: list[ChunkOutcome]) -> None:
        """Write and count the outcomes about the next chunk."""
        for outcome in outcomes:
            issues = read_outcome(outcome.line)
            self._tally.add(issues, outcome.chunk.place)
            self._part.write(blanked(outcome.line) + b"\n")
            self._rows.write(blanked(_rows(self._items.file, outcome, issues)))
            self._meter.add(resources=len(outcome.chunk), bytes=outcome.chunk.size, stored=0)

    def finish(self) -> None:
        """Publish the rows, then record the file as done."""
        self._rows.sync()
        publish(self._rows.final)
        tally, items = self._tally, self._items
        done = Done(
            file=items.base,
            identity=self._identity,
            counts={
                "lines": items.lines, "resources": items.resources, "skipped": items.skipped, "content": items.read,
                "issues": tally.issues, "findings": tally.findings, "resources_with_findings": tally.resources,
            },
            tallies={
                "severities": dict(tally.severities), "types": dict(tally.types),
                "codes": dict(tally.codes.most_common(100)),
            },
            seconds=round(time.monotonic() - self._begun, 3),
            patients=items.patients,
        )  # fmt: skip
        self._work.finish(done, self._part)
        self._meter.add(files=1)
        if tally.findings:
            logger.info("validation: %s has %s", items.file, human_count(tally.findings, "finding"))

    def close(self) -> None:
        """Remove unfinished files."""
        self._part.__exit__()
        self._rows.__exit__()


def rows_of(directory: Path, base: str) -> Path:
    """Return the path of the rows of a file."""
    return directory / ROWS / f"{base}.csv"


def write_summary(directory: Path, bases: Iterable[str]) -> None:
    """Write ``summary.csv`` from the rows of the files, in their order. Raises ``StorageError``."""
    with PartFile(directory / SUMMARY) as part:
        part.write((",".join(COLUMNS) + "\n").encode())
        for base in bases:
            path = rows_of(directory, base)
            with storage_errors(path), path.open("rb") as file:
                shutil.copyfileobj(file, part, 1 << 20)
        part.sync()
        publish(part.final)


def _rows(file: str, outcome: ChunkOutcome, issues: Iterable[ValidationIssue]) -> bytes:
    """Return the issues of one outcome as CSV, with one line for each entry that an issue names.

    An issue that names none concerns the Bundle as a whole, so it gets the range of lines that the Bundle holds.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for issue in issues:
        what = (issue.severity, issue.code, issue.message_id)
        message = " ".join(issue.text.split())
        places = [(element, outcome.chunk.place(entry)) for entry, element in issue.entries.items()]
        known = [(element, place) for element, place in places if place is not None]
        for element, place in known:
            index = "" if place.entry is None else place.entry
            _write(writer, file, place.line, index, place.key, *what, f"{place.type}{element}", message)
        if not known:
            first, last = outcome.chunk.span
            lines = f"{first}-{last}" if first < last else first
            _write(writer, file, lines, "", "", *what, issue.elsewhere, message)
    # A lone surrogate, which JSON can spell, is no Unicode text.
    return text.getvalue().encode("utf-8", "backslashreplace")


def _write(writer: Any, *cells: int | str) -> None:
    writer.writerow(as_text(cell) if isinstance(cell, str) else cell for cell in cells)
