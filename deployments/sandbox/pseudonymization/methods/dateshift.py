"""dateShift: dates move by −50 … +50 days, the same for everything that was sent under one id.

The offset comes from the id of the resource that was sent (the Bundle's, not the entry's) and ``dateShiftKey``, by the
deployed service's own arithmetic; or it is ``dateShiftFixedOffsetInDays``. Times become zero. A date without a day,
and one that tells an age above 89, is redacted instead.
"""

from __future__ import annotations

import re
from datetime import date, timedelta

from deployments.sandbox.common.json_text import JsonValue
from deployments.sandbox.pseudonymization.methods.dates import Calendar, read_date
from deployments.sandbox.pseudonymization.methods.method import Method, Work
from deployments.sandbox.pseudonymization.methods.redact import Redact
from deployments.sandbox.pseudonymization.model import Element
from deployments.sandbox.pseudonymization.problem import ProcessingFailureError
from deployments.sandbox.pseudonymization.rulefile import Parameters

_FACTOR = 131
_RANGE = 50
"""Days."""
_OLDEST = 89
_DIGIT = re.compile("[0-9]")
_SHIFTED = frozenset({"date", "dateTime", "instant"})


class DateShift(Method):
    """dateShift."""

    def __init__(self, parameters: Parameters, key: str, calendar: Calendar) -> None:
        self._key = key
        self._fixed = parameters.date_shift_fixed_offset_in_days
        self._calendar = calendar
        self._redact = Redact(parameters, calendar)
        self._latest = ("", self._computed(""))

    def value(self, value: JsonValue, element: Element, work: Work) -> JsonValue | None:
        """The date, moved. Other values stay. Raises ``ProcessingFailureError`` for what is no date."""
        if element.type not in _SHIFTED:
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
        """Days for everything that is sent under that id."""
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
