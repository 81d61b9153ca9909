"""Durations: ISO 8601 from days to seconds (``P1DT2H``, ``PT1.5S``) and the short form (``30m``, ``1h30m``, ``500ms``).

Weeks, months and years are errors because a timeout in them is a slip (and a month has no length); bare numbers
are errors because their unit is unknown (``4-product.md`` §3).
"""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

LONGEST = timedelta(days=3650)
"""Nothing here waits ten years; the bound keeps every clock of the program from overflowing."""

_NUMBER = r"[0-9]{1,15}(?:[.,][0-9]{1,15})?"
_ISO = re.compile(rf"P(?:({_NUMBER})D)?(?:T(?=[0-9])(?:({_NUMBER})H)?(?:({_NUMBER})M)?(?:({_NUMBER})S)?)?", re.ASCII)
_SHORT = re.compile(
    rf"(?:({_NUMBER})d)?(?:({_NUMBER})h)?(?:({_NUMBER})m(?!s))?(?:({_NUMBER})s)?(?:({_NUMBER})ms)?", re.ASCII
)
_CALENDAR = re.compile(rf"P(?:{_NUMBER}[YMWD])+(?:T.*)?|{_NUMBER}(?:w|mo|y)", re.ASCII)
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
        raise DurationError(_why_not(text))
    if text.startswith("P") and any("." in number for number in given[:-1]):
        raise DurationError("only the last number of an ISO 8601 duration may have a fraction")
    microseconds = sum(Decimal(number) * unit for number, unit in zip(numbers, _MICROSECONDS, strict=False) if number)
    if microseconds > LONGEST / timedelta(microseconds=1):
        raise DurationError(f"is longer than {LONGEST.days} days")
    return timedelta(microseconds=int(Decimal(microseconds).to_integral_value()))


def format_duration(duration: timedelta) -> str:
    """Return the ISO 8601 form, days to seconds, which ``parse_duration`` reads back to the same duration."""
    seconds, microseconds = duration.seconds, duration.microseconds
    hours, minutes, seconds = seconds // 3600, seconds // 60 % 60, seconds % 60
    fraction = f".{microseconds:06d}".rstrip("0") if microseconds else ""
    days = f"{duration.days}D" if duration.days else ""
    time = "".join(f"{number}{unit}" for number, unit in ((hours, "H"), (minutes, "M")) if number)
    if seconds or fraction:
        time += f"{seconds}{fraction}S"
    return f"P{days}" + (f"T{time}" if time or not days else "") + ("0S" if not days and not time else "")


def _why_not(text: str) -> str:
    if re.fullmatch(r"[+-]?[0-9]+(?:\.[0-9]+)?", text, re.ASCII):
        return "is a number without a unit"
    if text.startswith("-"):
        return "is negative"
    if _CALENDAR.fullmatch(text):
        return "uses weeks, months or years"
    return "is not a duration"
