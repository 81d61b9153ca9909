"""Lengths of bars and graphs over time: what the page draws beside its numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from tasks.release_report.report.document import ReleaseReport, Table, Value
from tasks.shared.publication import Count

HIGH: Final = 40
"""Of the frame of a graph."""

_BARS: Final = {"flow": "patients", "types": "patients"}
"""Columns that a graph shows where the document does not name one."""

_PERIODS: Final = (("year",), ("quarter",), ("month",))
_PERIOD: Final = re.compile(r"(\d{4})(?:-(?:Q([1-4])|(\d\d)))?", re.ASCII)
_PERCENT: Final = re.compile(r"(\d{1,3}) ?%", re.ASCII)
_LONGEST: Final = 400
"""Periods on one axis."""


class Series(NamedTuple):
    """The bars of one column over time, as a path in a frame of ``width`` × ``HIGH``; ``most`` is the largest value."""

    name: str
    most: Value
    path: str


class Chart(NamedTuple):
    """Patients over time, a series below the other, all on one axis from ``first`` to ``last``."""

    first: Value
    last: Value
    width: int
    series: tuple[Series, ...]


def bars(report: ReleaseReport, table: Table, columns: Sequence[str]) -> tuple[int, list[int]] | None:
    """Return which of the columns shown has bars, and how long they are, of 100; ``None`` if none has.

    The longest bar is that of all patients, where one is.
    """
    column = table.bars or _BARS.get(table.name)
    if column not in columns:
        return None
    at, k = columns.index(column), report.k
    values = [row[at] for row in table.rows]
    everybody = length(report.tiles.patients, k) if any(map(_is_all, values)) else 0
    largest = max([everybody, *(length(value, k) for value in values)])
    lengths = [largest if _is_all(value) else length(value, k) for value in values]
    return at, [round(100 * one / largest) if largest else 0 for one in lengths]


def chart_of(table: Table, k: int, columns: int) -> Chart | None:
    """Return each column behind the first one over the periods of the first; ``None`` if a period is none."""
    places = [_place_in_time(row[0]) for row in table.rows] if table.columns[:1] in _PERIODS else []
    known = [place for place in places if place is not None]
    if len(known) < len(places) or len(known) < 2 or max(known) - min(known) > _LONGEST:
        return None
    first = min(known)
    rows = list(zip(known, table.rows, strict=True))
    largest = max((length(value, k) for _, row in rows for value in row[1:]), default=0) or 1
    series = []
    for at, name in enumerate(table.columns[1:columns], start=1):
        found = [(place - first, length(row[at], k), row[at]) for place, row in rows if at < len(row)]
        top = max(found, key=lambda one: one[1], default=(0, 0.0, None))[2]
        bars = "".join(f"M{x} {HIGH}V{HIGH - round(HIGH * y / largest)}h.8V{HIGH}" for x, y, _ in found if y)
        series.append(Series(name, top, bars))
    return Chart(rows[0][1][0], rows[-1][1][0], max(known) - first + 1, tuple(series))


def length(value: Value, k: int) -> float:
    """Return how long the bar of a value is, beside those of others."""
    if isinstance(value, Count):
        return {"none": 0, "fewer": k / 2, "some": k}.get(value.word, value.number or 0)
    if isinstance(value, str):
        percent = _PERCENT.fullmatch(value)
        return float(percent[1]) if percent else 0
    return value if isinstance(value, (int, float)) else 0


def _place_in_time(value: Value) -> int | None:
    """Return a year, a quarter or a month as a number that counts on; ``None`` for anything else."""
    found = _PERIOD.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    if found[2]:
        return int(found[1]) * 4 + int(found[2]) - 1
    return int(found[1]) * 12 + int(found[3]) - 1 if found[3] else int(found[1])


def _is_all(value: Value) -> bool:
    return isinstance(value, Count) and value.word in {"all", "all_but_fewer"}
