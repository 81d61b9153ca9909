"""What the deployed service makes of a resource under a rule file (from its public source, 2.32 to 2.37.2).

The first rule that touches an element has it, with all below it but nested resources, which have a turn of their own.
Unlike the service, this has no key derivation, no ``perturb``, no partial ages and postal codes, and leaves the order
of elements as it is.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple

import yaml

from deployments.sandbox.fhirpath import compiled
from deployments.sandbox.pseudonymization.nodes import (
    RESOURCES,
    Json,
    Node,
    Step,
    matching,
    read_path,
    resource_node,
    without_empty,
)

_ALL: Final = frozenset({"", "Resource", "DomainResource"})
_DATES: Final = frozenset({"date", "dateTime", "instant"})
_OBSERVATION_VALUE: Final = "http://terminology.hl7.org/CodeSystem/v3-ObservationValue"
_LABELS: Final = {
    "redact": "REDACTED", "cryptohash": "CRYTOHASH", "encrypt": "MASKED", "dateshift": "PERTURBED",
    "substitute": "SUBSTITUTED", "generalize": "GENERALIZED", "pseudonymize": "PSEUDED",
}  # fmt: skip
_ID: Final = r"([A-Za-z0-9\-.]{1,64})"
_TYPE: Final = "|".join(RESOURCES)
_RESOURCE_REFERENCES: Final = (
    # No hyphen and no underscore in the base URL: so it is in the service.
    re.compile(rf"((?:https?://[A-Za-z0-9\\/.:%$]*)?(?:{_TYPE})/){_ID}(/_history/[A-Za-z0-9\-.]{{1,64}})?"),
    re.compile(rf"((?:(?:{_TYPE})\?)?identifier=(?:https?://[A-Za-z0-9\\/.:%$\-]*\|)?){_ID}()"),
)
_REFERENCES: Final = (
    *_RESOURCE_REFERENCES,
    re.compile(r"(urn:oid:)([0-2](?:\.(?:0|[1-9][0-9]*))+)()"),
    re.compile(r"(urn:uuid:)([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})()"),
)


class RuleFileError(Exception):
    """A rule file is invalid or not supported: 400. The message names the rule."""


class ProcessingError(Exception):
    """The service failed in its work: 500, or 422 for a missing domain in the newest versions."""


class Rule(NamedTuple):
    """One rule: resource type, steps from there, method, and its settings."""

    kind: str
    steps: list[Step]
    method: str
    given: Json


class Rules:
    """A rule file, as a process of the service uses it. Raises ``RuleFileError``.

    ``key`` is that of the process, for files without one; ``domains`` are those that exist in the pseudonym service
    behind it (``None``: each does).
    """

    def __init__(self, text: str, key: str, domains: frozenset[str] | None = None) -> None:
        try:
            document = yaml.safe_load(text)
        except yaml.YAMLError:
            raise RuleFileError("the file is not YAML") from None
        rules = document.get("fhirPathRules") if isinstance(document, dict) else None
        parameters = document.get("parameters") or {} if isinstance(document, dict) else {}
        if not isinstance(rules, list) or not isinstance(parameters, dict):
            raise RuleFileError("the file has no list fhirPathRules")
        self._rules = [_read(rule, parameters, f"fhirPathRules[{number}]") for number, rule in enumerate(rules)]
        self._methods = _Methods(str(parameters.get("cryptoHashKey") or key), domains)
        self._methods.keeps_years = bool(parameters.get("enablePartialDatesForRedact"))

    def apply(self, given: Json) -> Json:
        """Return what the rules make of a resource. Raises ``ProcessingError``."""
        holder = [given]
        self._visit(resource_node(holder, 0), given)
        made: Json = without_empty(holder[0])
        return made

    def _visit(self, resource: Node, root: Json) -> set[str]:
        """Apply the rules to a resource and those in it; return the labels of what was done."""
        done: set[str] = set()
        for rule in self._rules:
            if rule.kind == resource.kind or rule.kind in _ALL:
                for node in matching(rule.steps, resource):
                    if not node.is_handled and rule.method in _LABELS:
                        done.add(_LABELS[rule.method])
                    self._handle(node, rule, root)
        for inner in [*resource.nested()]:
            done |= self._visit(inner, root)
        if done and resource.name != "contained" and resource.value is not None:
            tags = [{"system": _OBSERVATION_VALUE, "code": code} for code in sorted(done)]
            resource.value.setdefault("meta", {}).setdefault("security", []).extend(tags)
        return done

    def _handle(self, node: Node, rule: Rule, root: Json) -> None:
        if node.is_handled:
            return
        if rule.method in ("remove", "substitute"):  # of an element as a whole
            for each in [*node.below()]:
                each.is_handled, each.children = True, []
            node.set(rule.given.get("replaceWith") if rule.method == "substitute" else None)
            return
        for each in node.below():
            if not each.is_handled:
                each.is_handled = True
                if not isinstance(each.value, dict) and each.value not in (None, ""):
                    each.set(self._methods.by_name[rule.method](each.value, each, rule, root))


Method = Callable[[Any, Node, Rule, Json], Any]


class _Methods:
    """The methods, each a function of value, node, rule and root resource."""

    keeps_years = False

    def __init__(self, key: str, domains: frozenset[str] | None) -> None:
        self._key = key
        self._domains = domains
        self.by_name: Mapping[str, Method] = {
            "keep": _same, "remove": _same, "substitute": _same, "redact": self._redact, "encrypt": _encrypt,
            "cryptohash": self._cryptohash, "pseudonymize": self._pseudonymize, "dateshift": self._dateshift,
            "generalize": _generalize,
        }  # fmt: skip

    def _redact(self, value: Any, node: Node, _rule: Rule, _root: Json) -> Any:
        if not self.keeps_years or node.kind not in _DATES or _is_old(str(value)):
            return None
        return str(value)[:4]

    def _cryptohash(self, value: Any, node: Node, rule: Rule, _root: Json) -> str:
        most = rule.given.get("truncateToMaxLength")

        def hashed(text: str) -> str:
            return hmac.digest(self._key.encode(), text.encode(), hashlib.sha256).hex()[: int(most) if most else None]

        return _changed(str(value), node, hashed)

    def _pseudonymize(self, value: Any, node: Node, rule: Rule, _root: Json) -> str:
        text = str(value)
        domain = rule.given.get("domain", rule.given.get("namespace"))
        if domain is None and _is_reference(text, node):
            found = next(filter(None, (form.fullmatch(text) for form in _REFERENCES)), None)
            if found is None:
                raise ProcessingError("Object reference not set to an instance of an object.")
            domain = found[1].rstrip("/")
        prefix = rule.given.get("domain-prefix", rule.given.get("namespace-prefix")) or ""
        full = f"{prefix}{domain or ''}"

        def pseudonym(original: str) -> str:
            if self._domains is not None and full not in self._domains:
                raise ProcessingError(f"The namespace {full!r} does not exist. Value: {original}")
            # The pseudonym service behind the deployed one has its own key, which a restart does not change.
            return hmac.digest(b"sandbox", f"{full}|{original}".encode(), hashlib.sha256).hex()[:24].upper()

        return _changed(text, node, pseudonym)

    def _dateshift(self, value: Any, node: Node, rule: Rule, root: Json) -> Any:
        if node.kind not in _DATES:
            return value
        text = str(value)
        if len(text) < 10 or _is_old(text):
            return self._redact(value, node, rule, root)
        offset = 0
        for byte in f"{root.get('id', '')}{rule.given['key']}".encode():
            offset = (offset * 131 + byte) % 101
        days = offset - 50 if rule.given["days"] is None else int(rule.given["days"])
        time, zone = re.fullmatch(r"(T[\d:.]*)?(Z|[+-].*)?", text[10:]).groups("")  # type: ignore[union-attr]
        return (date.fromisoformat(text[:10]) + timedelta(days)).isoformat() + re.sub(r"\d", "0", time) + zone


def _read(rule: Any, parameters: Json, place: str) -> Rule:
    try:
        kind, steps = read_path(rule["path"])
        method = str(rule["method"]).lower()
    except (KeyError, TypeError, AttributeError):
        raise RuleFileError(f"{place}: a rule has a path and a method") from None
    except ValueError as error:
        raise RuleFileError(f"{place}.path: {error}") from None
    if method not in _METHOD_NAMES:
        known = ", ".join(_METHOD_NAMES)
        raise RuleFileError(f"{place}.method: {rule['method']!r} is not supported; known are {known}")
    key = parameters.get("dateShiftKey") or secrets.token_hex(16)  # as in the service, for each rule
    given = {**rule, "key": key, "days": parameters.get("dateShiftFixedOffsetInDays")}
    if method == "generalize":
        given["cases"] = dict(_cases(rule.get("cases"), place))
    return Rule(kind, steps, method, given)


def _cases(given: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield condition and result of each case, as compilable expressions. Raises ``RuleFileError``."""
    try:
        cases = json.loads(given) if isinstance(given, str) else given
        for condition, result in cases.items():
            compiled(f"x.where({condition})")
            compiled(f"x.select({result})")
            yield condition, result
    except (ValueError, AttributeError, TypeError):
        raise RuleFileError(f"{place}.cases: a map of conditions to results in FHIRPath is expected") from None


def _same(value: Any, _node: Node, _rule: Rule, _root: Json) -> Any:
    return value


def _encrypt(value: Any, _node: Node, _rule: Rule, _root: Json) -> str:
    """Return random text of the length that AES-CBC with its IV has, in upper-case hex: nobody decrypts it here."""
    blocks = len(str(value).encode()) // 16 + 1
    return os.urandom(16 + 16 * blocks).hex().upper()


def _generalize(value: Any, _node: Node, rule: Rule, _root: Json) -> Any:
    for condition, result in rule.given["cases"].items():
        if compiled(f"x.where({condition})")({"x": value}):
            return compiled(f"x.select({result})")({"x": value})[0]
    return value if str(rule.given.get("otherValues")).lower() == "keep" else None


def _is_reference(text: str, node: Node) -> bool:
    """Return whether only the id part of a text changes."""
    if node.name == "reference" and node.kind == "string":
        return True
    return node.kind == "uri" and any(form.fullmatch(text) for form in _RESOURCE_REFERENCES)


def _changed(text: str, node: Node, change: Callable[[str], str]) -> str:
    if not _is_reference(text, node):
        return change(text)
    if text.startswith("#"):
        return f"#{change(text[1:])}"
    for form in _REFERENCES:
        if found := form.fullmatch(text):
            return f"{found[1]}{change(found[2])}{found[3] or ''}"
    return change(text)  # the type is lost


def _is_old(text: str) -> bool:
    """Return whether a date shows an age above 89."""
    today = datetime.now(UTC).date()
    year, month, day = int(text[:4]), int(text[5:7] or 1), int(text[8:10] or 1)
    return today.year - year - ((today.month, today.day) < (month, day)) > 89


_METHOD_NAMES: Final = tuple(_Methods("", None).by_name)
