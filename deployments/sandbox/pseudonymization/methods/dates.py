"""Dates as FHIR spells them, and what today is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime

_DATE = re.compile(
    r"(?P<year>[0-9]{4})(?:-(?P<month>0[1-9]|1[0-2])(?:-(?P<day>0[1-9]|[12][0-9]|3[01])"
    r"(?P<time>T[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})?)?)?)?"
)


@dataclass(frozen=True, slots=True)
class PartialDate:
    """A date, dateTime or instant, down to the precision it has."""

    year_text: str
    month: int | None
    day: int | None
    time: str
    """From ``T`` on, without the zone; empty without a time."""
    zone: str

    @property
    def year(self) -> int:
        """The year as a number."""
        return int(self.year_text)


def read_date(text: str) -> PartialDate | None:
    """Read a date, dateTime or instant; None when it is none."""
    found = _DATE.fullmatch(text)
    if found is None:
        return None
    month, day, zone = found["month"], found["day"], found["zone"] or ""
    return PartialDate(
        found["year"],
        int(month) if month else None,
        int(day) if day else None,
        (found["time"] or "").removesuffix(zone) if zone else found["time"] or "",
        zone,
    )


def _today() -> date:
    return datetime.now(UTC).date()


class Calendar:
    """Knows what today is."""

    def __init__(self, today: Callable[[], date] = _today) -> None:
        self._today = today

    def age(self, born: PartialDate) -> int:
        """Completed years since then; what is missing in the date counts as January or the first."""
        today = self._today()
        return today.year - born.year - ((today.month, today.day) < (born.month or 1, born.day or 1))
