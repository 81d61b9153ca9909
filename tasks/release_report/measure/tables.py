"""The measuring pass over tables that flattening made (document 5, section 2).

Paths are ``table.column``. A row is the patient's whom its column ``patient`` names (``tasks/flattening/views.py``); in
a table without one, a Patient's by its ``id``, if the table is called so or another table names that patient; else
nobody's. So tables with the column are read first. What a column holds its name tells, as far as it does
(``kinds.kind_of_column``).

Looked up among the original values is every cell but dates (those of birth are), and numbers other than whole ones of
six digits or more: what is measured is no original, and a table does not say what was.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tasks.release_report.measure import kinds
from tasks.release_report.measure.account import Account
from tasks.release_report.measure.trie import Node
from tasks.shared.errors import DataError, StorageError
from tasks.shared.files.ndjson import pieces

LONGEST_CELL: Final = 64 << 20
"""Characters of a cell; a longer one makes the file one that cannot be read."""

_DATE: Final = re.compile(r"[12]\d{3}-[01]\d(-[0-3]\d(T[\d:.,+\-Z]*)?)?\Z")
_NUMBER: Final = re.compile(r"-?\d+(\.\d*)?([eE][-+]?\d+)?\Z")
_LONG_NUMBER: Final = re.compile(r"\d{6,}\Z")
_PATIENT: Final = "patient"
_CODED: Final = ("_code", "_system", "_display", "_unit", "_status")
_IDS: Final = ("id", _PATIENT)


def is_table(path: Path) -> bool:
    """Return whether a file is a table, by its name."""
    return path.name.lower().removesuffix(".zst").endswith(".csv")


def _name(path: Path) -> str:
    """Return the name of a table: the file name without its extensions."""
    return re.sub(r"(\.csv)?\.zst\Z|\.csv\Z", "", path.name, flags=re.IGNORECASE)


def with_patients_first(files: list[Path]) -> list[Path]:
    """Tables that name the patient of a row before those that do not."""
    return sorted(files, key=lambda path: _PATIENT not in _header(path))


def _header(path: Path) -> list[str]:
    try:
        return next(_rows(path), [])
    except (DataError, StorageError, NoTableError, ValueError, csv.Error):
        return []


Tee = Callable[[bytes], object]
"""Sees bytes as they pass."""


def _ignore(_: bytes) -> None:
    """Look at nothing."""


class NoTableError(Exception):
    """A file is no table; its text says where it ceases to be."""


def _rows(path: Path, stored: Tee = _ignore, inside: Tee = _ignore) -> Iterator[list[str]]:
    csv.field_size_limit(LONGEST_CELL)

    def texts() -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        for piece in pieces(path, stored=stored):
            inside(piece)
            yield decoder.decode(piece)
        yield decoder.decode(b"", final=True)

    yield from csv.reader(_lines(texts()))


def _lines(texts: Iterator[str]) -> Iterator[str]:
    """Yield the lines of a text that comes in pieces, with their line feeds, as ``csv`` wants them."""
    begun = ""
    for text in texts:
        *ended, begun = (begun + text).split("\n")
        yield from (f"{line}\n" for line in ended)
    if begun:
        yield begun


def read_table(account: Account, path: Path, *, stored: Tee, inside: Tee, check: Callable[[], None]) -> Iterator[int]:
    """Take in a table; yields the number of each row.

    Raises ``NoTableError``, which quotes nothing of it, ``DataError`` (``zst-corrupt`` …) and ``StorageError``.
    """
    table = _name(path).lower()
    rows = _rows(path, stored, inside)
    number = 0
    try:
        header = next(rows, [])
        names = [name.lower() for name in header]
        of = names.index(_PATIENT) if _PATIENT in names else -1
        own = names.index("id") if "id" in names else -1
        root = account.trie.root(_name(path))
        columns: list[Node | None] = [None] * len(header)
        for number, row in enumerate(rows, 1):
            check()
            if len(row) != len(header):
                raise NoTableError(f"row {number} has not as many cells as there are columns")
            key = row[own] if own >= 0 else ""
            account.turn(_owner(account, row[of] if of >= 0 else None, key, table))
            cells: list[tuple[Node, str, bool]] = []
            for index, value in enumerate(row):
                if value and (index != of or account.lookup.suspicious(value)):
                    node = columns[index]
                    if node is None:
                        node = columns[index] = _column(account, root, header[index], value)
                    cells.append((node, value, not _NUMBER.match(value) or bool(_LONG_NUMBER.match(value))))
            account.row(root, cells, key, row[of] if of >= 0 else "")
            yield number
    except (csv.Error, UnicodeDecodeError):
        raise NoTableError(f"behind row {number} the table cannot be read") from None


def _column(account: Account, root: Node, name: str, value: str) -> Node:
    lower = name.lower()
    looked_up = "birth" in lower if _DATE.match(value) else lower not in _IDS and not lower.endswith(_CODED)
    kind = kinds.kind_of_column(name)
    return account.trie.column(root, name, kind, dates=bool(_DATE.match(value)), looked_up=looked_up)


def _owner(account: Account, reference: str | None, key: str, table: str) -> str | None:
    if reference is not None:
        return reference.rpartition("/")[2] or None
    known = table.startswith(_PATIENT) or account.lookup.hash(key) in account.serials
    return key if key and known else None
