"""generalize: a value that meets a case becomes what the case says; the others go, or stay."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from deployments.sandbox.common.fhirpath import EvaluationError
from deployments.sandbox.common.json_text import JsonValue, spelled
from deployments.sandbox.pseudonymization.methods.method import Method, Work
from deployments.sandbox.pseudonymization.model import Element
from deployments.sandbox.pseudonymization.path import Expression
from deployments.sandbox.pseudonymization.problem import ProcessingFailureError, RuleFileError
from deployments.sandbox.pseudonymization.rulefile import Rule

_OTHERS = ("redact", "keep")


class Generalize(Method):
    """generalize. The first case that holds counts; ``otherValues`` (default ``redact``) is for those without one."""

    def __init__(self, rule: Rule) -> None:
        """Raises ``RuleFileError``."""
        self._cases = tuple((Expression.of(case), Expression.of(value)) for case, value in _cases(rule).items())
        others = str(rule.setting("otherValues") or "redact").lower()
        if others not in _OTHERS:
            raise RuleFileError(f"otherValues is {' or '.join(_OTHERS)}")
        self._keeps_others = others == "keep"

    def value(self, value: JsonValue, element: Element, work: Work) -> JsonValue | None:
        """The value of the first case. Raises ``ProcessingFailureError`` when a case cannot be computed."""
        work.note("GENERALIZED")
        try:
            for case, result in self._cases:
                if case.holds(value, element.type):
                    return _json(result.value(value, element.type), element)
        except EvaluationError:
            raise ProcessingFailureError("generalize", element.location, spelled(value)) from None
        return value if self._keeps_others else None


def _cases(rule: Rule) -> dict[str, str]:
    given = rule.setting("cases")
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given)
        except msgspec.DecodeError:
            raise RuleFileError("cases is a mapping of FHIRPath expressions, or its JSON") from None
    if not isinstance(given, dict) or not given:
        raise RuleFileError("generalize needs cases, a mapping of FHIRPath expressions")
    return {str(case): str(value) for case, value in given.items()}


def _json(value: JsonValue, element: Element) -> JsonValue:
    """What the library computed, as JSON."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Decimal | float):
        return msgspec.Raw(format(Decimal(str(value)), "f").encode())
    raise ProcessingFailureError("generalize", element.location, type(value).__name__)
