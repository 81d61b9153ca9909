"""Sections 7e and 11: dates by year, quarter and month, how precise they are, those before birth and in the future, and
the last day of each patient. Each day is noted for the comparison with ``import/`` (``occurrences.py``).

Bound: 2,400 years, quarters and months a path (``dates``).
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
_QUARTER: Final = "quarter "
"""What stands before a quarter among the years and months of a path: longer than what is looked up of a value."""
_QUARTER_OF: Final = {f"{month:02}": f"Q{(month + 2) // 3}" for month in range(1, 13)}
_MONTHS: Final = 2_400
"""Years, quarters and months that are counted of one path."""
_NINETY: Final = 32_871
"""Days that make 90 years."""
_ORDINALS: Final = 50_000
"""Days of paths that are remembered."""


class Days:
    """The birthday and the last day of each patient, as ordinals (0: not known), those of the run, and where each day
    is ``noted`` as it stands, if it is to be compared."""

    __slots__ = ("birth", "births", "highest", "last", "noted")

    def __init__(self, noted: Spill | None) -> None:
        self.births = array("i")
        self.last = array("i")
        self.birth = self.highest = ""
        self.noted = noted

    def begin(self, patient: int) -> None:
        """Begin a run of data of a patient, perhaps a new one, or of no patient (-1)."""
        self.highest, self.birth = "", ""
        if patient == len(self.births):
            self.births.append(0)
            self.last.append(0)
        elif patient >= 0 and (birth := self.births[patient]):
            self.birth = date.fromordinal(birth).isoformat()

    def born(self, patient: int, birth: object) -> str:
        """Take in a patient's birthday; as far as it is one, it is given back."""
        if not isinstance(birth, str) or not _MONTH.match(birth[:7]):
            return ""
        if day := _day(birth):
            self.births[patient] = day
        self.birth = birth or self.birth
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

    def enter(child: Node, value: str) -> None:  # noqa: C901
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
        if child.clinical:
            if day > days.highest:
                if day > today:
                    touch(child.future)
                    return
                if size >= 10:
                    days.highest = day
            if day < days.birth and not days.birth.startswith(day):
                touch(child.before)

    def new_month(month: str, dates: dict[str, Cell]) -> Cell | None:
        """Return the cell of a month or a year; ``None`` for other texts."""
        if not _MONTH.match(month):
            return None
        if len(dates) >= _MONTHS or bounds.crowded:
            bounds.others["dates"] += 1
            return Cell()
        year = dates.setdefault(month[:4], Cell())
        if len(month) == 4:
            return year
        quarter = _QUARTER_OF.get(month[5:])
        up = dates.setdefault(f"{_QUARTER}{month[:5]}{quarter}", Cell(year)) if quarter else year
        return dates.setdefault(month, Cell(up))

    return enter


def dates_of(node: Node, moved: Moved) -> Dates:
    """Return the dates at a path, and the shift of its days."""
    dates = node.dates or {}
    return Dates(
        patients=node.patients,
        years={month: cell.patients for month, cell in dates.items() if len(month) == 4 and cell.patients},
        quarters={
            quarter.removeprefix(_QUARTER): cell.patients
            for quarter, cell in dates.items()
            if quarter.startswith(_QUARTER) and cell.patients
        },
        months={month: cell.patients for month, cell in dates.items() if len(month) == 7 and cell.patients},
        precision={name: cell.patients for name, cell in node.precision.items() if cell.patients},
        future=node.future.patients if node.future is not None else 0,
        before_birth=node.before.patients if node.before is not None else 0,
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
