"""pseudonymize: a value becomes a pseudonym of its domain; of a reference only the id.

The deployed service asks a trust centre for pseudonyms, by domain. Here they are computed with a key of the service's
own, so that the same value of a domain has the same pseudonym in every request and after every restart.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

from deployments.sandbox.common.json_text import JsonValue, spelled
from deployments.sandbox.common.r4 import RESOURCE_TYPES
from deployments.sandbox.pseudonymization.methods.method import Method, Work
from deployments.sandbox.pseudonymization.model import Element
from deployments.sandbox.pseudonymization.problem import ProcessingFailureError
from deployments.sandbox.pseudonymization.references import holds_reference, referenced_type, with_id
from deployments.sandbox.pseudonymization.rulefile import Rule

_KEY = b"sluice sandbox: pseudonyms of invented people, no secret"
_DIGEST = 15
"""Bytes of a pseudonym, 24 letters in base 32."""
_PREFIX = 32
"""Longest domain in front of a pseudonym, so that an id stays within FHIR's 64 letters."""
_UNSAFE = re.compile("[^A-Za-z0-9]+")


class Pseudonymize(Method):
    """pseudonymize."""

    def __init__(self, rule: Rule) -> None:
        domain = rule.setting("domain", "namespace", "context")
        prefix = rule.setting("domain-prefix", "namespace-prefix", "context-prefix")
        self._domain = str(domain) if domain else None
        self._prefix = str(prefix or "")

    def value(self, value: JsonValue, element: Element, work: Work) -> JsonValue | None:
        """The pseudonym. Without a domain it is that of the resource type, for ids and references.

        Raises ``ProcessingFailureError`` for another value without a domain, and for numbers and booleans.
        """
        if not isinstance(value, str):
            raise ProcessingFailureError("pseudonymize", element.location, spelled(value))
        if not value:
            return value
        is_reference = holds_reference(element, value)
        domain = self._domain or _implied(value, element, is_reference=is_reference)
        if domain is None:
            raise ProcessingFailureError("pseudonymize without a domain", element.location, value)
        work.note("PSEUDED")
        if is_reference:
            return with_id(value, lambda part: pseudonym(part, self._prefix + domain))
        return pseudonym(value, self._prefix + domain)


def pseudonym(value: str, domain: str) -> str:
    """The pseudonym of a value in a domain: letters, digits and hyphens, at most 57, beginning with the domain."""
    digest = hmac.digest(_KEY, f"{domain}\0{value}".encode(), hashlib.sha256)
    shown = _UNSAFE.sub("-", domain)[:_PREFIX].strip("-")
    return f"{shown}-{base64.b32encode(digest[:_DIGEST]).decode().lower()}".lstrip("-")


def _implied(value: str, element: Element, *, is_reference: bool) -> str | None:
    if is_reference:
        return referenced_type(value)
    return element.parent if element.name == "id" and element.parent in RESOURCE_TYPES else None
