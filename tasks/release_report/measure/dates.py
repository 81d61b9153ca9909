"""Dates by month, how precise they are, and the last day of each patient. Each day is noted for the comparison with
``import/`` (``occurrences.py``).

Bound: 2,400 months a path (``dates``).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from datetime import date
from typing import Any, Final

from tasks.release_report.measure.cells import Bounds, Cell, DataRun
from tasks.release_report.measure.lookup import Lookup
from tasks.release_report.measure.measured import Dates
from tasks.release_report.measure.occurrences import Moved, noted_day
from tasks.release_report.measure.spill import Spill
from tasks.release_report.measure.trie import Node

_MONTH: Final = re.compile(r"[12]\d{3}(-[01]\d)?\Z")
_PRECISION: Final = {4: "year", 7: "month", 10: "day"}
_NEW_YEAR: Final = "-01-01"
"""A date that a rule makes of a year."""
_MONTHS: Final = 2_400
"""Months that are counted of one path."""
_NINETY: Final = 32_871
"""Days that make 90 years."""
_ORDINALS: Final = 50_000
"""Days of paths that are remembered."""


class Days:
    """The birthday and the last day of each patient, as ordinals (0: not known), those of the run, and where each day
    is ``noted`` as it stands, if it is to be compared."""

    __slots__ = ("births", "highest", "last", "noted")

    def __init__(self, noted: Spill | None) -> None:
        self.births = array("i")
        self.last = array("i")
        self.highest = ""
        self.noted = noted

    def begin(self, patient: int) -> None:
        """Begin a run of data of a patient, perhaps a new one, or of no patient (-1)."""
        self.highest = ""
        if patient == len(self.births):
            self.births.append(0)
            self.last.append(0)

    def born(self, patient: int, birth: object) -> str:
        """Take in a patient's birthday; as far as it is one, it is given back."""
        if not isinstance(birth, str) or not _MONTH.match(birth[:7]):
            return ""
        if day := _day(birth):
            self.births[patient] = day
        return birth

    def end(self, patient: int) -> None:
        """End the run."""
        self.last[patient] = max(self.last[patient], _day(self.highest))

    def above_89(self) -> int:
        """Patients whose age at their last day is above 89."""
        return sum(1 for born, last in zip(self.births, self.last, strict=True) if born and last - born >= _NINETY)

    def birthdays(self) -> array[int]:
        """Return the birthdays as days are noted; 0 also for the first of a year, which rules make of any day."""
        days = (date.fromordinal(birth) if birth else None for birth in self.births)
        return array("i", [0 if day is None or day.timetuple().tm_yday == 1 else noted_day(day) for day in days])


def dating(  # noqa: C901 - one room of local names is what makes it fast
    run: DataRun, days: Days, lookup: Lookup, bounds: Bounds, *, today: str
) -> Callable[[Node, str], None]:
    """Return the function that records a date at a leaf."""
    touch, texting, collecting = run.touch, lookup.text, lookup.collecting is not None
    known = 0
    noted = days.noted
    if noted is not None:
        add_owner, (add_place, add_day) = noted.hashes.append, (column.append for column in noted.more)

    def new_day(child: Node, day: str) -> tuple[Cell | None, int]:
        """Return the cell of a month and the stored day, or 0; both are remembered while the bounds permit."""
        nonlocal known
        dates: Any = child.dates
        found: tuple[Cell | None, int]
        found = dates.get(day[:7]) or new_month(day[:7], dates), _noted(day) if noted is not None else 0
        if day[:7] in dates and known < _ORDINALS:
            known += 1
            child.spelled[day] = found
        return found

    def enter(child: Node, value: str) -> None:
        run.changing = True
        number = run.number
        day = value[:10]
        cell, ordinal = child.spelled.get(day) or new_day(child, day)
        if cell is None:
            texting(child, value)
            return
        size = len(value)
        if cell.run != number:
            touch(cell)
        if ordinal and run.patient >= 0:
            add_owner(run.patient)
            add_place(child.place)
            add_day(ordinal)
        if child.looked_up and size >= 10 and value[4:10] != _NEW_YEAR:
            texting(child, value)
        if collecting:
            return
        cell = child.precise.get(size)
        if cell is None:
            cell = child.precise[size] = child.precision.setdefault(_PRECISION.get(size, "time"), Cell())
        if cell.run != number:
            touch(cell)
        if child.clinical and size >= 10 and days.highest < day <= today:
            days.highest = day

    def new_month(month: str, dates: dict[str, Cell]) -> Cell | None:
        """Return the cell of a month or a year; ``None`` for other texts."""
        if not _MONTH.match(month):
            return None
        if len(dates) >= _MONTHS or bounds.crowded:
            bounds.others["dates"] += 1
            return Cell()
        return dates.setdefault(month, Cell())

    return enter


def dates_of(node: Node, moved: Moved) -> Dates:
    """Return the dates at a path, and the shift of its days."""
    dates = node.dates or {}
    return Dates(
        patients=node.patients,
        months={month: cell.patients for month, cell in dates.items() if len(month) == 7 and cell.patients},
        precision={name: cell.patients for name, cell in node.precision.items() if cell.patients},
        compared=moved.compared,
        same=moved.same,
        raw=moved.raw,
    )


def _noted(text: str) -> int:
    """Return the ordinal of a day as it is stored; 0 if the text is not a complete date."""
    day = _day(text)
    return noted_day(date.fromordinal(day)) if day else 0


def _day(text: str) -> int:
    """Return the ordinal of a day; 0 if the text is not a complete date."""
    if len(text) != 10:
        return 0
    try:
        return date.fromisoformat(text).toordinal()
    except ValueError:
        return 0
