"""Cut the lines of a file into resources; a line that does not fit in memory is cut in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from tasks.shared.fhir.bundle import CutLine, cut
from tasks.shared.fhir.long_line import LongLine, lines_with_long

_LINE: Final = 8 << 20
"""Bytes of a line that is read as a whole."""
_PART: Final = 1 << 20
"""Bytes of a longer one that are read at once."""


def cut_file(
    path: Path, *, spool: Path, largest: int, check: Callable[[], None]
) -> Iterator[tuple[CutLine, int, int | None]]:
    """Yield the lines of a file, cut into resources, each with the size of its text twice.

    A line that does not fit in memory comes in parts, each with the patients of the whole line and the size of its own
    text; the second size is that of the line for the first part, and ``None`` for the others. ``spool`` is a directory
    for such a line, ``largest`` the limit of a resource in it in bytes. ``check`` raises if the step must stop. Raises
    what ``lines_with_long`` raises.
    """
    first = 0
    for number, line in lines_with_long(path, limit=_LINE, spool=spool, largest=largest):
        check()
        if isinstance(line, LongLine):
            for part, size, of_line in _cut_long(line, path.name, first, check):
                first += part.count
                yield part, size, of_line
        else:
            part = cut(line, file=path.name, number=number, first=first)
            first += part.count
            yield part, len(line), len(line)


def _cut_long(
    line: LongLine, file: str, first: int, check: Callable[[], None]
) -> Iterator[tuple[CutLine, int, int | None]]:
    """Yield the parts of a line. A first pass finds its patients and placeholders."""
    entries = 0
    patients: set[str] = set()
    placeholders: dict[bytes, bytes] = {}
    for text in line.bundles(_PART):
        check()
        part = cut(text, file=file, number=line.number, entry=entries)
        entries += part.count + part.skipped
        patients |= part.patients
        placeholders |= part.placeholders
    entries = 0
    of_line: int | None = line.size
    for text in line.bundles(_PART):
        check()
        part = cut(text, file=file, number=line.number, first=first, entry=entries, placeholders=placeholders)
        first += part.count
        entries += part.count + part.skipped
        yield replace(part, patients=frozenset(patients)), len(text), of_line
        of_line = None
