"""FHIR dates, and the methods redact and dateShift.

redact removes values, except for the parts that the switches for partial values keep. dateShift moves dates by −50 …
+50 days, by the same offset for everything sent under one id. The offset comes from the id of the sent resource (the
Bundle's, not the entry's) and ``dateShiftKey``, with the deployed service's arithmetic; or it is
``dateShiftFixedOffsetInDays``. Times become zero. A date without a day, or one that reveals an age above 89, is
redacted instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation

from deployments.sandbox.common.json_text import JsonValue, spelled
from deployments.sandbox.pseudonymization.method import Method, MethodContext
from deployments.sandbox.pseudonymization.model import FhirElement
from deployments.sandbox.pseudonymization.problem import ProcessingFailureError
from deployments.sandbox.pseudonymization.rulefile import RuleParameters

_DATE = re.compile(
    r"(?P<year>[0-9]{4})(?:-(?P<month>0[1-9]|1[0-2])(?:-(?P<day>0[1-9]|[12][0-9]|3[01])"
    r"(?P<time>T[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})?)?)?)?"
)


@dataclass(frozen=True, slots=True)
class PartialDate:
    """A date, dateTime or instant with its precision."""

    year_text: str
    month: int | None
    day: int | None
    time: str
    """Time from ``T`` on, without the zone; empty without a time."""
    zone: str

    @property
    def year(self) -> int:
        """Year as a number."""
        return int(self.year_text)


def read_date(text: str) -> PartialDate | None:
    """Return a date, dateTime or instant, or None for other text."""
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
    """Computes ages as of today."""

    def __init__(self, today: Callable[[], date] = _today) -> None:
        self._today = today

    def age(self, born: PartialDate) -> int:
        """Return completed years since ``born``; a missing month or day counts as the first."""
        today = self._today()
        return today.year - born.year - ((today.month, today.day) < (born.month or 1, born.day or 1))


_OLDEST = 89
"""Oldest age in years that is kept; higher ages, and dates that reveal them, are removed (HIPAA Safe Harbor)."""
_KEPT_DIGITS = 3
_DIGIT = re.compile("[0-9]")
_DATES = frozenset({"date", "dateTime", "instant"})


class Redact(Method):
    """Method redact."""

    def __init__(self, parameters: RuleParameters, calendar: Calendar) -> None:
        self._dates = parameters.enable_partial_dates_for_redact
        self._ages = parameters.enable_partial_ages_for_redact
        self._zip_codes = parameters.enable_partial_zip_codes_for_redact
        self._restricted = parameters.restricted_zip_code_tabulation_areas
        self._calendar = calendar

    def value(self, value: JsonValue, element: FhirElement, work: MethodContext) -> JsonValue | None:
        """Return None, or with the switches the year of a date, an age up to 89, or the area of a postal code."""
        if self._zip_codes and element.name == "postalCode":
            work.note("ABSTRED")
            return self._area(spelled(value))
        work.note("REDACTED")
        if self._dates and element.type in _DATES:
            return self.year(str(value))
        if self._ages and element.parent == "Age" and element.type == "decimal":
            return value if _is_young(spelled(value)) else None
        return None

    def year(self, text: str) -> str | None:
        """Return the year of a date, or None if it reveals an age above 89 or is invalid."""
        date = read_date(text)
        return None if date is None or self._calendar.age(date) > _OLDEST else date.year_text

    def _area(self, code: str) -> str:
        kept = "" if code.startswith(self._restricted) else code[:_KEPT_DIGITS]
        return kept + _DIGIT.sub("0", code[len(kept) :])


def _is_young(text: str) -> bool:
    try:
        return Decimal(text) <= _OLDEST
    except InvalidOperation:
        return False


_FACTOR = 131
_RANGE = 50
"""Largest offset in days."""


class DateShift(Method):
    """Method dateShift."""

    def __init__(self, parameters: RuleParameters, key: str, calendar: Calendar) -> None:
        self._key = key
        self._fixed = parameters.date_shift_fixed_offset_in_days
        self._calendar = calendar
        self._redact = Redact(parameters, calendar)
        self._latest = ("", self._computed(""))

    def value(self, value: JsonValue, element: FhirElement, work: MethodContext) -> JsonValue | None:
        """Return the moved date; other values stay. Raises ``ProcessingFailureError`` for an invalid date."""
        if element.type not in _DATES:
            return value
        text = str(value)
        read = read_date(text)
        if read is None:
            raise ProcessingFailureError("dateShift", element.location, text)
        if read.month is None or read.day is None or self._calendar.age(read) > _OLDEST:
            return self._redact.value(value, element, work)
        try:
            moved = date(read.year, read.month, read.day) + timedelta(days=self.offset(work.seed()))
        except (ValueError, OverflowError):
            raise ProcessingFailureError("dateShift", element.location, text) from None
        work.note("PERTURBED")
        return f"{moved.isoformat()}{_DIGIT.sub('0', read.time)}{read.zone}"

    def offset(self, seed: str) -> int:
        """Return the offset in days for everything sent under that id."""
        if self._latest[0] != seed:
            self._latest = (seed, self._computed(seed))
        return self._latest[1]

    def _computed(self, seed: str) -> int:
        if self._fixed is not None:
            return self._fixed
        offset = 0
        for byte in (seed + self._key).encode():
            offset = (offset * _FACTOR + byte) % (2 * _RANGE + 1)
        return offset - _RANGE
