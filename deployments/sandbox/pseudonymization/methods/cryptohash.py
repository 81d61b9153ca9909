"""cryptoHash: a value becomes its HMAC-SHA256 in hexadecimal; of a reference only the id."""

from __future__ import annotations

import hashlib
import hmac

from deployments.sandbox.common.json_text import JsonValue, spelled
from deployments.sandbox.pseudonymization.methods.method import Method, Work
from deployments.sandbox.pseudonymization.model import Element
from deployments.sandbox.pseudonymization.problem import ProcessingFailureError, RuleFileError
from deployments.sandbox.pseudonymization.references import holds_reference, with_id
from deployments.sandbox.pseudonymization.rulefile import Rule


class CryptoHash(Method):
    """cryptoHash."""

    def __init__(self, rule: Rule, key: str) -> None:
        """Raises ``RuleFileError`` for a ``truncateToMaxLength`` that is no number from 1."""
        self._key = key.encode()
        self._length = _length(rule)

    def value(self, value: JsonValue, element: Element, work: Work) -> JsonValue | None:
        """The hash. Raises ``ProcessingFailureError`` for numbers and booleans, which cannot hold one."""
        if not isinstance(value, str):
            raise ProcessingFailureError("cryptoHash", element.location, spelled(value))
        if not value:
            return value
        work.note("CRYTOHASH")
        return with_id(value, self.hash) if holds_reference(element, value) else self.hash(value)

    def hash(self, text: str) -> str:
        """The hash of a text."""
        return hmac.digest(self._key, text.encode(), hashlib.sha256).hex()[: self._length]


def _length(rule: Rule) -> int | None:
    given = rule.setting("truncateToMaxLength")
    if given is None:
        return None
    text = str(given)
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise RuleFileError("truncateToMaxLength is a whole number from 1")
    return int(text)
