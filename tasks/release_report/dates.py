"""Birth dates: how precise they are, and ages above 89 (docs/review.md)."""

from __future__ import annotations

import re
from datetime import date
from typing import Final

PRECISIONS: Final = ("year", "month", "day")
HIGHEST_AGE: Final = 89

_DATE: Final = re.compile(r"([12]\d{3})(?:-([01]\d)(?:-([0-3]\d)(?:T\S*)?)?)?\Z")


def precision_of(text: str) -> str:
    """Return whether a date says a year, a month or a day; blank if it is no date."""
    found = _DATE.match(text)
    return PRECISIONS[sum(part is not None for part in found.groups()) - 1] if found else ""


def year_of(text: object) -> str:
    """Return the year of a date; blank if it is no date."""
    return text[:4] if isinstance(text, str) and precision_of(text) else ""


def is_very_old(birth: str, until: object, today: date) -> bool:
    """Return whether somebody born at ``birth`` was above 89 at ``until``, the date of death, or is ``today``.

    What a date does not say counts as late as can be, for somebody is called old only if the data say so.
    """
    born = _DATE.match(birth)
    last = _DATE.match(until) if isinstance(until, str) else None
    if born is None:
        return False
    end = (last[1], last[2] or "12", last[3] or "31") if last else (str(today.year), *today.isoformat().split("-")[1:])
    begin = (born[1], born[2] or "01", born[3] or "01") if born[2] is None else (born[1], born[2], born[3] or "01")
    age = int(end[0]) - int(begin[0]) - ((end[1], end[2]) < (begin[1], begin[2]))
    return age > HIGHEST_AGE
