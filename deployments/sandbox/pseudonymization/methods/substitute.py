"""substitute: an element gets the content of ``replaceWith``; what earlier rules handled in it stays."""

from __future__ import annotations

import re

import msgspec

from deployments.sandbox.common.json_text import JsonValue, copied, decode_raw
from deployments.sandbox.pseudonymization.methods.method import Method, Reach, Work
from deployments.sandbox.pseudonymization.model import Element
from deployments.sandbox.pseudonymization.problem import ProcessingFailureError, RuleFileError
from deployments.sandbox.pseudonymization.rulefile import Rule

_SPELLINGS = {
    "boolean": re.compile("true|false"),
    "decimal": re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"),
    "integer": re.compile("-?(?:0|[1-9][0-9]*)"),
    "positiveInt": re.compile("[1-9][0-9]*"),
    "unsignedInt": re.compile("0|[1-9][0-9]*"),
}
"""Types that are not strings in JSON, and how their values look."""


class Substitute(Method):
    """substitute. ``replaceWith`` is the text of a value, or JSON or YAML of an object; empty takes the value away."""

    reach = Reach.SUBSTITUTE

    def __init__(self, rule: Rule) -> None:
        """Raises ``RuleFileError`` without ``replaceWith``."""
        if not rule.has("replaceWith"):
            raise RuleFileError("substitute needs replaceWith")
        self._given = rule.setting("replaceWith")

    def value(self, value: JsonValue, element: Element, work: Work) -> JsonValue | None:
        """The new value. Raises ``ProcessingFailureError`` when it is not of the element's type."""
        del value
        work.note("SUBSTITUTED")
        if not isinstance(self._given, str):
            raise ProcessingFailureError("substitute", element.location, "an object")
        if not self._given:
            return None
        spelling = _SPELLINGS.get(element.type)
        if spelling is None:
            return self._given
        if spelling.fullmatch(self._given) is None:
            raise ProcessingFailureError("substitute", element.location, self._given)
        return self._given == "true" if element.type == "boolean" else msgspec.Raw(self._given.encode())

    def content(self, kept: dict[str, JsonValue] | None, element: Element, work: Work) -> dict[str, JsonValue] | None:
        """The new content of an object, around what is kept of the old one; None for nothing."""
        work.note("SUBSTITUTED")
        given = self._given
        if isinstance(given, str):
            try:
                given = decode_raw(given.encode()) if given else {}
            except (ValueError, RecursionError):
                given = None
        if not isinstance(given, dict):
            raise ProcessingFailureError("substitute", element.location, str(self._given))
        return _merged(kept or {}, copied(given)) or None


def _merged(kept: dict[str, JsonValue], given: dict[str, JsonValue]) -> dict[str, JsonValue]:
    for name, value in given.items():
        old = kept.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            kept[name] = _merged(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            kept[name] = old + value[len(old) :]
        elif old is None:
            kept[name] = value
    return kept
