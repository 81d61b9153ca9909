"""``summary.csv``: every issue with file, line, ``Type/id`` (document 3 §6). Private: 0600, in the job directory.

It is put together from one fragment for each file, written while the file is validated, so a million findings are
never in memory and a resumed run need not ask again.

It quotes the service's messages, for the person who mends the data; results, artifacts and logs have their codes only.
"""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tasks.shared.errors import storage_errors
from tasks.shared.files.out_file import PartFile
from tasks.shared.files.private_file import open_private
from tasks.shared.files.spreadsheet import as_text
from tasks.validation.client import Outcome
from tasks.validation.findings import Issue

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
    "profile",
)
"""``profile`` is the last one: what an earlier version wrote ends before it, and has none recorded."""

_WHOLE: Final = -1
"""In place of an entry: the Bundle as a whole."""


def rows(file: str, outcome: Outcome, issues: Iterable[Issue]) -> bytes:
    """The issues of one outcome as lines of CSV: one for each entry that an issue names.

    An issue that names none concerns the Bundle as a whole, so it gets the range of lines that the Bundle holds.
    """
    claimed = {_WHOLE: ""}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for issue in issues:
        what = (issue.severity, issue.code, issue.message_id)
        message = " ".join(issue.text.split())
        for entry, *where, element in _places(outcome, issue):
            if entry not in claimed:
                claimed[entry] = outcome.profiles(entry)
            cells = (file, *where, *what, element, message, claimed[entry])
            writer.writerow(as_text(cell) if isinstance(cell, str) else cell for cell in cells)
    # A lone surrogate, which JSON can spell, is no Unicode text.
    return text.getvalue().encode("utf-8", "backslashreplace")


def _places(outcome: Outcome, issue: Issue) -> Iterator[tuple[int, int | str, int | str, str, str]]:
    """The entry that was sent, and of each place the line, the entry on it, ``Type/id`` and element."""
    found = False
    for entry, element in issue.entries.items():
        if (place := outcome.place(entry)) is not None:
            found = True
            index = "" if place.entry is None else place.entry
            yield entry, place.line, index, place.key, f"{place.type}{element}"
    if not found:
        first, last = outcome.span
        yield _WHOLE, f"{first}-{last}" if first < last else first, "", "", issue.elsewhere


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
