"""Birth dates: how precise they are, and ages above 89 (docs/review.md)."""

from __future__ import annotations

import re
from datetime import date
from typing import Final

PRECISIONS: Final = ("year", "month", "day")

_OLD: Final = 90
_DATE: Final = re.compile(r"([12]\d{3})(?:-([01]\d)(?:-([0-3]\d)(?:T\S*)?)?)?\Z")


def precision_of(text: str) -> str:
    """Return whether a date says a year, a month or a day; blank if it is no date."""
    found = _DATE.match(text)
    return PRECISIONS[sum(part is not None for part in found.groups()) - 1] if found else ""


def year_of(text: object) -> str:
    """Return the year of a date; blank if it is no date."""
    return text[:4] if isinstance(text, str) and precision_of(text) else ""


def is_very_old(birth: str, until: object, today: date) -> bool:
    """Return whether somebody born at ``birth`` may be above 89: ``today``, or at the date of death ``until``.

    Missing parts of a date are filled in for the highest possible age.
    """
    born = birth[:10] + "0000-01-01"[len(birth) :]
    end = until[:10] + "0000-12-31"[len(until) :] if year_of(until) and isinstance(until, str) else today.isoformat()
    return int(end[:4]) - int(born[:4]) - (end[5:] < born[5:]) >= _OLD
