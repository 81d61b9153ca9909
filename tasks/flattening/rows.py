"""Check the rows of an answer, and write them as lines of CSV (docs/steps.md).

A row is a JSON object keyed by column name. Columns and their order are the view's. Missing or null is an empty cell;
strings are verbatim, numbers as spelled, booleans ``true`` and ``false``; objects and arrays are compact JSON. Keys
that are no column are ignored. The tables are those of RFC 4180, with LF.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from tasks.flattening.views import GroupView
from tasks.shared.fhir.resource import UNREADABLE

_row = msgspec.json.Decoder(dict[str, msgspec.Raw])
_string = msgspec.json.Decoder(str)


class RowsError(Exception):
    """The rows are wrong. The text of the error has no data; ``line`` is the last line read, for private files."""

    def __init__(self, reference: str, text: str, line: bytes) -> None:
        super().__init__(text)
        self.reference = reference
        self.line = line


class AnswerReader:
    """Reads one answer, in pieces of any size, as lines of CSV: its rows must be those of the resources with ``ids``.

    A view gives one row for each resource; with ``forEachOrNull`` at least one, with ``forEach`` any number. After
    ``end``, ``with_rows`` is the number of resources that have rows. Raises ``RowsError``.
    """

    def __init__(self, view: GroupView, ids: Iterable[str | None]) -> None:
        self.rows = self.with_rows = 0
        self._columns = view.columns
        clauses = msgspec.json.encode(view.definition)  # inside of strings quotes are escaped
        self._all = b'"forEach":' not in clauses
        self._once = self._all and b'"forEachOrNull":' not in clauses
        self._sent = Counter(ids)
        self._found: Counter[str | None] = Counter()
        self._rest = self._last = b""

    def feed(self, piece: bytes) -> bytes:
        """Return the rows that this piece completes, as lines of CSV."""
        block, end, rest = piece.rpartition(b"\n")
        if end:
            block, self._rest = self._rest + block, rest
            return self._read(block)
        self._rest += piece
        return b""

    def end(self) -> bytes:
        """Return the last row, if it had no line end; compare the ids of all rows with those that were sent."""
        text = self._read(self._rest) if self._rest else b""
        sent, found = self._sent, self._found
        self.with_rows = (sent & found).total()
        foreign = sum(count for one, count in found.items() if one not in sent)
        missing = (sent - found).total() if self._all else 0
        more = (found - sent).total() - foreign if self._once else 0
        wrong = {"missing": missing, "of other resources": foreign, "too many": more}
        if any(wrong.values()):
            counts = ", ".join(f"{count:,} {what}" for what, count in wrong.items() if count)
            what = f"the rows do not agree with the {sent.total():,} resources that were sent: {counts}"
            raise RowsError("flattening-rows-differ", what, self._last)
        return text

    def _read(self, block: bytes) -> bytes:
        rows: list[list[str]] = []
        for line in block.split(b"\n"):
            if not line or line.isspace():
                continue
            try:
                rows.append(self._cells(line))
            except UNREADABLE:
                what = f"row {self.rows + 1:,} of an answer is no JSON object"
                raise RowsError("flattening-row", what, line) from None
            self.rows += 1
        self._last = block
        return as_csv(rows)

    def _cells(self, line: bytes) -> list[str]:
        row = _row.decode(line)
        cells = [_cell(row[column]) if column in row else "" for column in self._columns]
        self._found[cells[0] or None] += 1
        return cells


def _cell(raw: msgspec.Raw) -> str:
    text = str(raw, "utf-8")
    first = text[:1]
    if first == '"':
        return text[1:-1] if "\\" not in text else _string.decode(text)
    if first in ("{", "["):
        return msgspec.json.format(text, indent=-1)
    return "" if text == "null" else text


def as_csv(rows: Iterable[Sequence[str]]) -> bytes:
    """Return rows as lines of CSV."""
    text = io.StringIO(newline="")
    plain = csv.writer(text, lineterminator="\n")
    # A carriage return alone ends a line for many readers; csv sees only its own line terminator.
    quoting = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in rows:
        (quoting if "\r" in "".join(row) else plain).writerow(row)
    return text.getvalue().encode()
