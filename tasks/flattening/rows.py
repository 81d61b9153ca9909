"""Rows of an answer as lines of CSV (document 3 §5, "Answer").

A row is a JSON object keyed by column name. Columns and their order are the view's. Missing or null is an empty cell;
strings are verbatim, numbers as spelled, booleans ``true`` and ``false``; objects and arrays are compact JSON. Keys
that are no column are ignored.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

_row = msgspec.json.Decoder(dict[str, msgspec.Raw])
_string = msgspec.json.Decoder(str)
_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError)
_NULL: Final = msgspec.Raw(b"null")


class NoRowError(Exception):
    """A line of an answer that is no JSON object; ``number`` counts the rows of the answer from 1. It quotes nothing.

    ``line`` is for private files.
    """

    def __init__(self, number: int, line: bytes) -> None:
        super().__init__(number)
        self.number = number
        self.line = line


class RowReader:
    """Turns lines of one answer into CSV.

    ``count`` is the number of rows; ``filled`` holds the positions of the columns that had a value; ``unknown_keys``
    says that there were keys that are no column. ``ids`` are, of what was read last, the texts of the column at
    ``key``; nothing tells the rows apart without one.
    """

    def __init__(self, columns: Sequence[str], key: int | None = None) -> None:
        self.count = 0
        self.ids: list[str | None] = []
        self.unknown_keys = False
        self.filled: set[int] = set()
        self._columns = columns
        self._key = None if key is None else columns[key]
        self._known = frozenset(columns)

    def read(self, block: bytes) -> bytes:
        """Convert whole lines to CSV. Raises ``NoRowError``."""
        self.ids = []
        rows: list[list[str]] = []
        for line in block.split(b"\n"):
            if not line or line.isspace():
                continue
            self.count += 1
            try:
                rows.append(self._cells(line))
            except _ERRORS:
                raise NoRowError(self.count, line) from None
        return _csv(rows, careful=b"\\" in block)

    def _cells(self, line: bytes) -> list[str]:
        row = _row.decode(line)
        cells = [_cell(row.get(column, _NULL)) for column in self._columns]
        if len(self.filled) < len(cells):
            self.filled.update(place for place, cell in enumerate(cells) if cell)
        self.unknown_keys = self.unknown_keys or not row.keys() <= self._known
        key = b"" if self._key is None else bytes(row.get(self._key, _NULL))
        self.ids.append(_string.decode(key) if key.startswith(b'"') else None)
        return cells


def header(columns: Sequence[str]) -> bytes:
    """Return the first line of a table."""
    return _csv([columns], careful=True)


def _cell(raw: msgspec.Raw) -> str:
    text = str(raw, "utf-8")
    first = text[:1]
    if first == '"':
        return text[1:-1] if "\\" not in text else _string.decode(text)
    if first in ("{", "["):
        return msgspec.json.format(text, indent=-1)
    return "" if text == "null" else text


def _csv(rows: Iterable[Sequence[str]], *, careful: bool) -> bytes:
    text = io.StringIO(newline="")
    plain = csv.writer(text, lineterminator="\n")
    if not careful:
        plain.writerows(rows)
        return text.getvalue().encode()
    # A carriage return alone ends a line for many readers; csv sees only its own line terminator.
    quoting = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in rows:
        (quoting if any("\r" in cell for cell in row) else plain).writerow(row)
    return text.getvalue().encode()
