"""Durations: ISO 8601 from days to seconds (``P1DT2H``, ``PT1.5S``) and the short form (``30m``, ``1h30m``, ``500ms``).

Weeks, months and years are errors because a timeout in them is a slip (and a month has no length); bare numbers are
errors because their unit is unknown.
"""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

LONGEST = timedelta(days=365)
"""Nothing here waits for a year; the bound keeps every clock of the program from overflowing."""

_NUMBER = r"[0-9]{1,15}(?:[.,][0-9]{1,15})?"
_ISO = re.compile(rf"P(?:({_NUMBER})D)?(?:T(?=[0-9])(?:({_NUMBER})H)?(?:({_NUMBER})M)?(?:({_NUMBER})S)?)?", re.ASCII)
_SHORT = re.compile(
    rf"(?:({_NUMBER})d)?(?:({_NUMBER})h)?(?:({_NUMBER})m(?!s))?(?:({_NUMBER})s)?(?:({_NUMBER})ms)?", re.ASCII
)
_MICROSECONDS = (86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000, 1_000)
"""Of a day, hour, minute, second, millisecond: the order of the groups in both patterns."""


class DurationError(ValueError):
    """The text is no duration. The message says why and does not quote the text."""


def parse_duration(text: str) -> timedelta:
    """Return the duration in ``text``, rounded to microseconds; zero or more.

    Raises ``DurationError`` for every other text. In the ISO form only the last number may have a fraction.
    """
    match = _ISO.fullmatch(text) or _SHORT.fullmatch(text)
    numbers = [group and group.replace(",", ".") for group in match.groups()] if match else []
    given = [number for number in numbers if number]
    if not given:
        bare = re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", text, re.ASCII)
        raise DurationError("is a number without a unit" if bare else "is not a duration in days to seconds")
    if text.startswith("P") and any("." in number for number in given[:-1]):
        raise DurationError("only the last number of an ISO 8601 duration may have a fraction")
    microseconds = sum(Decimal(number) * unit for number, unit in zip(numbers, _MICROSECONDS, strict=False) if number)
    if microseconds >= LONGEST / timedelta(microseconds=1):
        raise DurationError(f"must be shorter than {LONGEST.days} days")
    return timedelta(microseconds=int(Decimal(microseconds).to_integral_value()))
