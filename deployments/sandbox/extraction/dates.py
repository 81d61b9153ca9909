"""FHIR dates and periods as closed intervals of days.

A month or a year stands for all of its days. A dateTime counts as the day in its text, without time zone conversion.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from datetime import date

_DATE = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:T.*)?)?)?", re.DOTALL)
FIRST_DAY = date.min.toordinal()
LAST_DAY = date.max.toordinal()


@dataclass(frozen=True, slots=True)
class DayRange:
    """The days from ``first`` to ``last``, both inclusive, as ordinals of ``datetime.date``."""

    first: int = FIRST_DAY
    last: int = LAST_DAY

    def overlaps(self, other: DayRange) -> bool:
        """Return True if the two ranges share a day."""
        return self.first <= other.last and other.first <= self.last

    def covers(self, other: DayRange) -> bool:
        """Return True if this range contains every day of the other."""
        return self.first <= other.first and other.last <= self.last


def days_of(value: object) -> DayRange | None:
    """Return the days of a FHIR date, dateTime, instant, Period or Timing, or None without a date."""
    if isinstance(value, str):
        return _days_of_text(value)
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("event"), list):
        found = [days for item in value["event"] if (days := days_of(item)) is not None]
        return DayRange(min(days.first for days in found), max(days.last for days in found)) if found else None
    start, end = days_of(value.get("start")), days_of(value.get("end"))
    if start is None and end is None:
        return None
    days = DayRange(start.first if start else FIRST_DAY, end.last if end else LAST_DAY)
    return days if days.first <= days.last else None


def days_between(first: str | None, last: str | None) -> DayRange:
    """Return the days from one date to another, both inclusive. Raises ``ValueError`` for none, or the wrong order."""
    days = days_of({"start": first, "end": last})
    if days is None or any(given is not None and days_of(given) is None for given in (first, last)):
        raise ValueError("one date or two are needed, the later one not before the earlier one")
    return days


def _days_of_text(text: str) -> DayRange | None:
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    year, month, day = (int(part) if part else None for part in match.groups())
    try:
        first = date(year or 0, month or 1, day or 1)
        last = first if day else date(first.year, month or 12, calendar.monthrange(first.year, month or 12)[1])
    except ValueError:
        return None
    return DayRange(first.toordinal(), last.toordinal())


def age(born: date, today: date, unit: str) -> int:
    """Return the age in completed years (``a``), months (``mo``) or weeks (``wk``)."""
    if unit == "wk":
        return (today - born).days // 7
    months = (today.year - born.year) * 12 + today.month - born.month - (today.day < born.day)
    return months // 12 if unit == "a" else months
