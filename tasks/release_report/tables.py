"""Scan tables of flattening. The path of a column in the ViewDefinition gives its kind (docs/review.md).

A column without a view, as in a corrected table, is judged by its name. A row belongs to the patient in its column
``patient``; in a table of patients, in ``id``.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tasks.release_report.kinds import DISPLAY, MAYBE_TEXT, kind_of, kind_of_column
from tasks.release_report.paths import Found, Paths
from tasks.release_report.patients import Patients, patient_of
from tasks.shared.errors import DataError
from tasks.shared.files.ndjson import pieces

LONGEST_CELL: Final = 64 << 20
"""Most characters of a cell. With a longer one, the file counts as unreadable."""

_CALL: Final = re.compile(r"\([^()]*\)")
_FUNCTIONS: Final = frozenset({"where", "first", "last", "single", "resolve", "exists", "$this", "join", "extension"})
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_ .()-]{0,99}")
"""A header that can be shown; others are named by their number."""


def is_table(path: Path) -> bool:
    """Return whether a file is a table, by its name."""
    return path.name.lower().removesuffix(".zst").endswith(".csv")


class TableScan:
    """Scans tables; each column is a path. ``any``: there was a table."""

    def __init__(self, views: Path | None, paths: Paths, patients: Patients) -> None:
        self.any = False
        self._views = views
        self._paths = paths
        self._at = paths.at
        self._patients = patients

    def read(self, path: Path, stored: Callable[[bytes], object]) -> int:
        """Read one table; return how many rows it has. Raises ``DataError`` for a file that is no table."""
        self.any = True
        rows = csv.reader(_texts(path, stored), strict=True)
        csv.field_size_limit(LONGEST_CELL)
        name, number = re.sub(r"\.csv(\.zst)?\Z", "", path.name, flags=re.IGNORECASE), 0
        try:
            header = next(rows, [])
            resource, kinds = self._columns(name, header)
            found = [(at, self._of(name, at, title, kind)) for at, (title, kind) in enumerate(kinds) if kind]
            for row in rows:
                number += 1
                self._row(row, header, resource, found)
        except (csv.Error, UnicodeDecodeError):
            raise DataError("not-a-table", "the file is not a table", context=path.name) from None
        return number

    def _row(self, row: list[str], header: list[str], resource: str, found: list[tuple[int, Found]]) -> None:
        cells = dict(zip(header, row, strict=False))
        whose = cells.get("id", "") if resource == "Patient" else patient_of(cells.get("patient", ""), {})
        self._at.line += 1
        self._at.begin(self._patients.know(whose) if whose else None)
        for at, one in found:
            if at < len(row) and (value := row[at].strip()) and (one.kind != MAYBE_TEXT or " " in value):
                one.seen.see(self._at)

    def _of(self, table: str, at: int, title: str, kind: str) -> Found:
        path = f"{table}.csv: {title if _PLAIN.fullmatch(title) else f'column {at + 1}'}"
        return self._paths.found(path, kind)

    def _columns(self, name: str, header: list[str]) -> tuple[str, list[tuple[str, str]]]:
        """Return the resource type of a table, and title and kind of each column."""
        view = _view(self._views, name)
        resource = str(view.get("resource", ""))
        paths = dict(_paths(view.get("select"), ()))
        known = {title: kind_of(resource, names) for title, names in paths.items()}
        # The path of a display does not show whether it is a person's name; most are names of codes.
        kinds = {title: "" if kind == DISPLAY else kind for title, kind in known.items()}
        return resource, [(title, kinds.get(title, kind_of_column(title))) for title in header]


def _texts(path: Path, stored: Callable[[bytes], object]) -> Iterator[str]:
    """Yield the lines of a table, for the CSV reader."""
    decoder, rest = codecs.getincrementaldecoder("utf-8-sig")(), ""
    for piece in pieces(path, stored=stored):
        *ended, rest = (rest + decoder.decode(piece)).split("\n")
        for line in ended:
            yield f"{line}\n"
    rest += decoder.decode(b"", final=True)
    if rest:
        yield rest


def _view(directory: Path | None, name: str) -> Mapping[str, Any]:
    """Return the ViewDefinition of a table; empty if there is none."""
    if directory is None:
        return {}
    try:
        view = json.loads((directory / f"{name}.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return view if isinstance(view, dict) else {}


def _paths(select: Any, around: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield name and path of each column of select clauses; ``around`` is the path of the outer ``forEach``."""
    for clause in select if isinstance(select, list) else ():
        inside = (*around, *_names(clause.get("forEach") or clause.get("forEachOrNull") or ""))
        for column in clause.get("column", ()):
            yield str(column.get("name")), (*inside, *_names(str(column.get("path", ""))))
        yield from _paths(clause.get("select"), inside)


def _names(path: str) -> tuple[str, ...]:
    """Return the elements that a FHIRPath goes through, without functions and their arguments."""
    while (plain := _CALL.sub("", path)) != path:
        path = plain
    return tuple(name for name in path.split(".") if name and name not in _FUNCTIONS)
