"""redact: values go, except for what the switches for partial values leave."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from deployments.sandbox.common.json_text import JsonValue, spelled
from deployments.sandbox.pseudonymization.methods.dates import Calendar, read_date
from deployments.sandbox.pseudonymization.methods.method import Method, Work
from deployments.sandbox.pseudonymization.model import Element
from deployments.sandbox.pseudonymization.rulefile import Parameters

_OLDEST = 89
"""Years; a higher age, or a date that tells one, goes in any case (HIPAA Safe Harbor)."""
_KEPT_DIGITS = 3
_DIGIT = re.compile("[0-9]")
_DATES = frozenset({"date", "dateTime", "instant"})


class Redact(Method):
    """redact."""

    def __init__(self, parameters: Parameters, calendar: Calendar) -> None:
        self._dates = parameters.enable_partial_dates_for_redact
        self._ages = parameters.enable_partial_ages_for_redact
        self._zip_codes = parameters.enable_partial_zip_codes_for_redact
        self._restricted = parameters.restricted_zip_code_tabulation_areas
        self._calendar = calendar

    def value(self, value: JsonValue, element: Element, work: Work) -> JsonValue | None:
        """Nothing; with the switches the year of a date, an age up to 89, the area of a postal code."""
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
        """The year of a date, unless it tells an age above 89, or is none."""
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
