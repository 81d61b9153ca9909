"""The methods of rules except those for dates, and their keys (document 3 §4).

Of a reference only the id is hashed or replaced. The deployed service gets pseudonyms by domain from a trust centre.
Here they are computed with the service's own key, so that the same value of a domain has the same pseudonym in every
request and after every restart.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal

import msgspec

from deployments.sandbox.common.fhirpath import EvaluationError
from deployments.sandbox.common.json_text import JsonValue, copied, decode_raw, spelled
from deployments.sandbox.common.r4 import RESOURCE_TYPES
from deployments.sandbox.pseudonymization.dates import Calendar, DateShift, Redact
from deployments.sandbox.pseudonymization.method import Keep, Method, MethodContext, Reach, Remove
from deployments.sandbox.pseudonymization.model import FhirElement
from deployments.sandbox.pseudonymization.path import RuleExpression
from deployments.sandbox.pseudonymization.problem import ProcessingFailureError, RuleFileError
from deployments.sandbox.pseudonymization.rulefile import AnonymizationRule, MethodName, RuleFile, RuleParameters

_TYPE = "|".join(sorted(RESOURCE_TYPES))
_ID = r"[A-Za-z0-9\-.]{1,64}"
_LITERAL = re.compile(
    rf"(?P<prefix>(?:https?://[^\s?#|]+/)?(?P<type>{_TYPE})/)(?P<id>{_ID})(?P<suffix>/_history/{_ID})?"
)
_CONDITIONAL = re.compile(
    rf"(?P<prefix>(?:(?P<type>{_TYPE})\?)?identifier=(?:https?://[^\s|]*\|)?)(?P<id>{_ID})(?P<suffix>)"
)
_URN = re.compile(
    r"(?P<prefix>urn:(?:oid|uuid):)(?P<id>[0-2](?:\.(?:0|[1-9][0-9]*))+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})"
    r"(?P<suffix>)"
)


def holds_reference(element: FhirElement, value: str) -> bool:
    """Return True if only the id in this value may be replaced: ``Reference.reference``, or a ``uri`` that names a
    resource (``Bundle.entry.fullUrl``, ``Bundle.entry.request.url``)."""
    if element.parent == "Reference" and element.name == "reference":
        return True
    return element.type == "uri" and _resource(value) is not None


def referenced_type(reference: str) -> str | None:
    """Return the resource type that a reference names, or None."""
    found = _resource(reference)
    return found["type"] if found else None


def with_id(reference: str, change: Callable[[str], str]) -> str:
    """Return the reference with its id changed; without a recognizable id the whole reference is changed."""
    if reference.startswith("#"):
        return "#" + change(reference[1:]) if len(reference) > 1 else reference
    found = _resource(reference) or _URN.fullmatch(reference)
    if found is None:
        return change(reference)
    return f"{found['prefix']}{change(found['id'])}{found['suffix'] or ''}"


def _resource(value: str) -> re.Match[str] | None:
    return _LITERAL.fullmatch(value) or (_CONDITIONAL.fullmatch(value) if "identifier=" in value else None)


_SERVER_KEY = b"sluice sandbox: the server's key for keyDerivationContext, no secret"


@dataclass(frozen=True)
class Keys:
    """Keys of a rule file."""

    crypto_hash: str = field(repr=False)
    date_shift: str = field(repr=False)
    is_lasting: bool = True
    """True if another request with the same rules uses the same keys."""


def keys_of(rules: RuleFile) -> Keys:
    """Return the keys of a rule file.

    *Quirk of the deployed service, kept and sharpened:* a missing key is generated, here for each request, so that a
    client that depends on it fails soon.
    """
    given = rules.parameters
    crypto_hash = given.crypto_hash_key or (
        _derived(given.key_derivation_context) if given.key_derivation_context else None
    )
    date_shift = given.date_shift_key
    if given.date_shift_fixed_offset_in_days is not None:
        date_shift = date_shift or ""
    used = {rule.method for rule in rules.fhir_path_rules}
    lasting = (crypto_hash is not None or MethodName.CRYPTO_HASH not in used) and (
        date_shift is not None or MethodName.DATE_SHIFT not in used
    )
    return Keys(
        secrets.token_hex(32) if crypto_hash is None else crypto_hash,
        secrets.token_hex(32) if date_shift is None else date_shift,
        lasting,
    )


def _derived(context: str) -> str:
    """Return HKDF-SHA256 (RFC 5869) of the server's key, one block, in hexadecimal."""
    extracted = hmac.digest(b"\0" * 32, _SERVER_KEY, hashlib.sha256)
    return hmac.digest(extracted, context.encode() + b"\x01", hashlib.sha256).hex()


class CryptoHash(Method):
    """Method cryptoHash."""

    def __init__(self, rule: AnonymizationRule, key: str) -> None:
        """Read the settings. Raises ``RuleFileError`` unless ``truncateToMaxLength`` is a number from 1."""
        self._key = key.encode()
        self._length = _length(rule)

    def value(self, value: JsonValue, element: FhirElement, work: MethodContext) -> JsonValue | None:
        """Return the hash. Raises ``ProcessingFailureError`` for numbers and booleans."""
        if not isinstance(value, str):
            raise ProcessingFailureError("cryptoHash", element.location, spelled(value))
        if not value:
            return value
        work.note("CRYTOHASH")
        return with_id(value, self.hash) if holds_reference(element, value) else self.hash(value)

    def hash(self, text: str) -> str:
        """Return the hash of a text."""
        return hmac.digest(self._key, text.encode(), hashlib.sha256).hex()[: self._length]


def _length(rule: AnonymizationRule) -> int | None:
    given = rule.setting("truncateToMaxLength")
    if given is None:
        return None
    text = str(given)
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise RuleFileError("truncateToMaxLength must be a whole number from 1")
    return int(text)


_OTHERS = ("redact", "keep")


class Generalize(Method):
    """Method generalize. The first true case applies; ``otherValues`` (default ``redact``) is for all other values."""

    def __init__(self, rule: AnonymizationRule) -> None:
        """Read the cases. Raises ``RuleFileError``."""
        self._cases = tuple((RuleExpression.of(case), RuleExpression.of(value)) for case, value in _cases(rule).items())
        others = str(rule.setting("otherValues") or "redact").lower()
        if others not in _OTHERS:
            raise RuleFileError(f"otherValues must be {' or '.join(_OTHERS)}")
        self._keeps_others = others == "keep"

    def value(self, value: JsonValue, element: FhirElement, work: MethodContext) -> JsonValue | None:
        """Return the value of the first true case. Raises ``ProcessingFailureError`` if a case cannot be computed."""
        work.note("GENERALIZED")
        try:
            for case, result in self._cases:
                if case.holds(value, element.type):
                    return _json(result.value(value, element.type), element)
        except EvaluationError:
            raise ProcessingFailureError("generalize", element.location, spelled(value)) from None
        return value if self._keeps_others else None


def _cases(rule: AnonymizationRule) -> dict[str, str]:
    given = rule.setting("cases")
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given)
        except msgspec.DecodeError:
            raise RuleFileError("cases must be a mapping of FHIRPath expressions, or its JSON") from None
    if not isinstance(given, dict) or not given:
        raise RuleFileError("generalize needs cases, a mapping of FHIRPath expressions")
    return {str(case): str(value) for case, value in given.items()}


def _json(value: JsonValue, element: FhirElement) -> JsonValue:
    """Return a value computed by the library as JSON."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Decimal | float):
        return msgspec.Raw(format(Decimal(str(value)), "f").encode())
    raise ProcessingFailureError("generalize", element.location, type(value).__name__)


_KEY = b"sluice sandbox: pseudonyms of invented people, no secret"
_DIGEST = 15
"""Bytes of a pseudonym: 24 letters in base 32."""
_PREFIX = 32
"""Longest domain prefix of a pseudonym, so that an id fits into FHIR's 64 characters."""
_UNSAFE = re.compile("[^A-Za-z0-9]+")


class Pseudonymize(Method):
    """Method pseudonymize."""

    def __init__(self, rule: AnonymizationRule) -> None:
        domain = rule.setting("domain", "namespace", "context")
        prefix = rule.setting("domain-prefix", "namespace-prefix", "context-prefix")
        self._domain = str(domain) if domain else None
        self._prefix = str(prefix or "")

    def value(self, value: JsonValue, element: FhirElement, work: MethodContext) -> JsonValue | None:
        """Return the pseudonym. The default domain of ids and references is the resource type.

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
    """Return the pseudonym of a value in a domain: letters, digits and hyphens, at most 57, domain first."""
    digest = hmac.digest(_KEY, f"{domain}\0{value}".encode(), hashlib.sha256)
    shown = _UNSAFE.sub("-", domain)[:_PREFIX].strip("-")
    return f"{shown}-{base64.b32encode(digest[:_DIGEST]).decode().lower()}".lstrip("-")


def _implied(value: str, element: FhirElement, *, is_reference: bool) -> str | None:
    if is_reference:
        return referenced_type(value)
    return element.parent if element.name == "id" and element.parent in RESOURCE_TYPES else None


_SPELLINGS = {
    "boolean": re.compile("true|false"),
    "decimal": re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"),
    "integer": re.compile("-?(?:0|[1-9][0-9]*)"),
    "positiveInt": re.compile("[1-9][0-9]*"),
    "unsignedInt": re.compile("0|[1-9][0-9]*"),
}
"""Patterns of the types that are not strings in JSON."""


class Substitute(Method):
    """Method substitute. ``replaceWith`` is a text value, or an object in JSON or YAML; empty removes the value."""

    reach = Reach.SUBSTITUTE

    def __init__(self, rule: AnonymizationRule) -> None:
        """Read the settings. Raises ``RuleFileError`` without ``replaceWith``."""
        if not rule.has("replaceWith"):
            raise RuleFileError("substitute needs replaceWith")
        self._given = rule.setting("replaceWith")

    def value(self, value: JsonValue, element: FhirElement, work: MethodContext) -> JsonValue | None:
        """Return the new value. Raises ``ProcessingFailureError`` if it is not of the element's type."""
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

    def content(
        self, kept: dict[str, JsonValue] | None, element: FhirElement, work: MethodContext
    ) -> dict[str, JsonValue] | None:
        """Return the new content of an object with the kept parts of the old one; None for nothing."""
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


def method_of(rule: AnonymizationRule, parameters: RuleParameters, keys: Keys, calendar: Calendar) -> Method:
    """Return the method of a rule with its settings. Raises ``RuleFileError`` for invalid settings."""
    match rule.method:
        case MethodName.REDACT:
            return Redact(parameters, calendar)
        case MethodName.KEEP:
            return Keep()
        case MethodName.REMOVE:
            return Remove()
        case MethodName.CRYPTO_HASH:
            return CryptoHash(rule, keys.crypto_hash)
        case MethodName.DATE_SHIFT:
            return DateShift(parameters, keys.date_shift, calendar)
        case MethodName.SUBSTITUTE:
            return Substitute(rule)
        case MethodName.GENERALIZE:
            return Generalize(rule)
        case MethodName.PSEUDONYMIZE:
            return Pseudonymize(rule)
