"""Rows of an answer as lines of CSV (document 3 §5, "Answer").

A row is a JSON object keyed by column name. Columns and their order are the view's. Missing or null is an empty cell;
strings are verbatim, numbers as spelled, booleans ``true`` and ``false``; objects and arrays are compact JSON. Keys
that are no column are ignored. A key that stands twice makes a row ambiguous, and it is none.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from tasks.shared.fhir.reading import RepeatedKeyError, unique_members


class _Decimal(str):
    """A number with a point or an exponent, as the text it is."""

    __slots__ = ()


_string = msgspec.json.Decoder(str)
_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError)
_TEXTS: Final = frozenset({str, _Decimal, type(None)})
_SIMPLE: Final = _TEXTS | {int}

Cells = Sequence[str | int | None]


class NoRowError(Exception):
    """A line of an answer that is no row; ``number`` counts the rows of the answer from 1. It quotes nothing.

    ``what`` is a predicate that says why, ``line`` is for private files.
    """

    def __init__(self, number: int, line: bytes, what: str = "is no JSON object") -> None:
        super().__init__(number)
        self.number = number
        self.line = line
        self.what = what


class Shape:
    """The columns of the rows of one view, in the order of the cells."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self.strict = self._decoder(Any, "", strict=True)
        self.lenient = self._decoder(Any, "", strict=False)
        self.raw = self._decoder(msgspec.Raw, msgspec.Raw(), strict=False)

    def _decoder(self, kind: Any, default: Any, *, strict: bool) -> msgspec.json.Decoder[Any]:
        row = msgspec.defstruct(
            "Row",
            [(f"c{place}", kind, default) for place in range(len(self.columns))],
            rename={f"c{place}": name for place, name in enumerate(self.columns)},
            forbid_unknown_fields=strict,
        )
        return msgspec.json.Decoder(row, float_hook=_Decimal)


class RowReader:
    """Turns lines of one answer into CSV.

    ``count`` is the number of rows; ``filled`` holds the positions of the columns that had a value; ``unknown_keys``
    says that there were keys that are no column. ``ids`` are, of what was read last, the values of the column at
    ``key``, as they were decoded; nothing tells the rows apart without one.
    """

    def __init__(self, shape: Shape, key: int | None = None) -> None:
        self.count = 0
        self.ids: list[Any] = []
        self._key = key
        self.unknown_keys = False
        self.filled: set[int] = set()
        self._shape = shape
        self._empty = set(range(len(shape.columns)))

    def read(self, block: bytes) -> bytes:
        """Convert whole lines to CSV. Raises ``NoRowError``."""
        rows = self._rows(block)
        self.count += len(rows)
        if self._empty:
            for row in rows:
                for place in [place for place in self._empty if row[place] not in ("", None)]:
                    self._empty.discard(place)
                    self.filled.add(place)
        return _csv(rows, careful=b"\\" in block)

    def _rows(self, block: bytes) -> list[Cells]:
        rows: list[Cells] = [msgspec.structs.astuple(row) for row in self._decoded(block)]
        self.ids = [None] * len(rows) if self._key is None else [row[self._key] for row in rows]
        cells = list(chain.from_iterable(rows))
        kinds_of_all = Counter(map(type, cells))
        if _quotes_in(block) != _quotes_of(cells, kinds_of_all[str]):
            self._check_keys(block, rows)
        if kinds_of_all.keys() <= _TEXTS:
            return rows
        lines: list[bytes] = []
        for number, row in enumerate(rows):
            kinds = frozenset(map(type, row))
            # Two numbers that are equal to 0, 0 and -0, are the only integers of which the spelling is not known.
            if kinds <= _TEXTS or (kinds <= _SIMPLE and 0 not in row):
                continue
            lines = lines or _lines(block)
            if len(lines) != len(rows):
                raise self._no_row(block)
            try:
                rows[number] = [*map(_cell, msgspec.structs.astuple(self._shape.raw.decode(lines[number])))]
            except _ERRORS:
                raise NoRowError(self.count + number + 1, lines[number]) from None
        return rows

    def _check_keys(self, block: bytes, rows: Sequence[Cells]) -> None:
        """Look for keys that stand twice, of which msgspec takes the last, where there are quotes to be explained."""
        lines = _lines(block)
        if len(lines) != len(rows):
            raise self._no_row(block)
        for number, (line, row) in enumerate(zip(lines, rows, strict=True), self.count + 1):
            if _quotes_in(line) == _quotes_of(row, sum(type(cell) is str for cell in row)):
                continue
            try:
                unique_members(line.strip())
            except RepeatedKeyError:
                raise NoRowError(number, line, "has a key twice") from None
            except _ERRORS:
                raise NoRowError(number, line) from None

    def _decoded(self, block: bytes) -> list[Any]:
        if not self.unknown_keys:
            try:
                return self._in_lines(self._shape.strict, block)
            except _ERRORS:
                pass  # a key that is no column, or no row at all
        try:
            rows = self._in_lines(self._shape.lenient, block)
        except _ERRORS:
            raise self._no_row(block) from None
        self.unknown_keys = True
        return rows

    def _in_lines(self, decoder: msgspec.json.Decoder[Any], block: bytes) -> list[Any]:
        rows = decoder.decode_lines(block)
        # msgspec takes two objects on a line, and one on two lines.
        ends = block.count(b"\n") + (not block.endswith(b"\n"))
        if (len(rows) != ends or b"\n\n" in block) and len(rows) != len(_lines(block)):
            raise self._no_row(block)
        return rows

    def _no_row(self, block: bytes) -> NoRowError:
        """Return the error about the first line that is not a row."""
        number, line = self.count + 1, block
        for number, line in enumerate(_lines(block), self.count + 1):  # noqa: B007 - the last one, if not another
            try:
                self._shape.lenient.decode(line)
            except _ERRORS:
                break
        return NoRowError(number, line)


def header(columns: Sequence[str]) -> bytes:
    """Return the first line of a table."""
    return _csv([columns], careful=True)


def _lines(block: bytes) -> list[bytes]:
    return [line for line in block.split(b"\n") if line and not line.isspace()]


def _quotes_in(text: bytes) -> int:
    """Return the number of quotes that begin or end a text, plus quotes inside a text where this is not certain."""
    return text.count(b'"') - (0 if b"\\\\" in text else text.count(b'\\"'))


def _quotes_of(cells: Sequence[Any], texts: int) -> int:
    """Return the number of quotes needed for these cells, ``texts`` of them text: two for each key and each text.

    A key that stands twice takes more; so does what is nested, or no column.
    """
    return 2 * (len(cells) + texts - 2 * cells.count(""))


def _cell(raw: msgspec.Raw) -> str:
    text = str(raw, "utf-8")
    first = text[:1]
    if first == '"':
        return text[1:-1] if "\\" not in text else _string.decode(text)
    if first in ("{", "["):
        return msgspec.json.format(text, indent=-1)
    return "" if text == "null" else text


def _csv(rows: Iterable[Cells], *, careful: bool) -> bytes:
    text = io.StringIO(newline="")
    plain = csv.writer(text, lineterminator="\n")
    if not careful:
        plain.writerows(rows)
        return text.getvalue().encode()
    # A carriage return alone ends a line for many readers; csv sees only its own line terminator.
    quoting = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in rows:
        (quoting if any(isinstance(cell, str) and "\r" in cell for cell in row) else plain).writerow(row)
    return text.getvalue().encode()
