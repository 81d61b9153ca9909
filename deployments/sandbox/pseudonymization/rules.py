"""Apply a rule file to a resource as the deployed service does (from its public source, 2.32 to 2.37.2).

The first rule that matches an element handles it and everything below it, except nested resources, which are handled
afterwards. Unlike the service, this has no key derivation, no ``perturb``, no rule for ages and postal codes, and keeps
the order of elements.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from datetime import date, timedelta
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
_METHODS: Final = ("keep", "remove", *_LABELS)
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

    ``key`` is used for a file without a key; ``domains`` are those that exist in the pseudonym service behind it
    (``None``: all).
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
        self._key = str(parameters.get("cryptoHashKey") or key).encode()
        self._keeps_years = bool(parameters.get("enablePartialDatesForRedact"))
        self._domains = domains

    def apply(self, given: Json) -> Json:
        """Return a resource after the rules. Raises ``ProcessingError``."""
        holder = [given]
        self._visit(resource_node(holder, 0), given)
        made: Json = without_empty(holder[0])
        return made

    def _visit(self, resource: Node, root: Json) -> set[str]:
        """Apply the rules to a resource and those in it; return the labels of the applied methods."""
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
                    each.set(self._changed(each.value, each, rule, root))

    def _changed(self, value: Any, node: Node, rule: Rule, root: Json) -> Any:
        match rule.method:
            case "redact":
                return self._redacted(value, node)
            case "cryptohash":
                most = int(rule.given.get("truncateToMaxLength") or 64)
                return _with_id(str(value), node, lambda text: _keyed(self._key, text)[:most])
            case "encrypt":  # random text of the length that AES-CBC with its IV has: nobody decrypts it here
                return os.urandom(16 + 16 * (len(str(value).encode()) // 16 + 1)).hex().upper()
            case "pseudonymize":
                return self._pseudonym(str(value), node, rule)
            case "dateshift" if node.kind in _DATES:
                moved = _shifted(str(value), rule, str(root.get("id", "")))
                return self._redacted(value, node) if moved is None else moved
            case "generalize":
                return _generalized(value, rule)
        return value

    def _redacted(self, value: Any, node: Node) -> str | None:
        return str(value)[:4] if self._keeps_years and node.kind in _DATES else None

    def _pseudonym(self, text: str, node: Node, rule: Rule) -> str:
        domain = rule.given.get("domain", rule.given.get("namespace"))
        if domain is None and _is_reference(text, node):
            found = next(filter(None, (form.fullmatch(text) for form in _REFERENCES)), None)
            if found is None:
                raise ProcessingError("Object reference not set to an instance of an object.")
            domain = found[1].rstrip("/")
        prefix = rule.given.get("domain-prefix", rule.given.get("namespace-prefix")) or ""
        full = f"{prefix}{domain or ''}"
        if self._domains is not None and full not in self._domains:
            raise ProcessingError(f"The namespace {full!r} does not exist. Value: {text}")
        # The pseudonym service behind the deployed one has its own key, which a restart does not change.
        return _with_id(text, node, lambda original: _keyed(b"sandbox", f"{full}|{original}")[:24].upper())


def _keyed(key: bytes, text: str) -> str:
    return hmac.digest(key, text.encode(), hashlib.sha256).hex()


def _shifted(text: str, rule: Rule, root: str) -> str | None:
    """Return a moved date, its time as zeros; None for a month or a year."""
    if len(text) < 10:
        return None
    offset = 0
    for byte in f"{root}{rule.given['key']}".encode():
        offset = (offset * 131 + byte) % 101
    days = offset - 50 if rule.given["days"] is None else int(rule.given["days"])
    time, zone = re.fullmatch(r"(T[\d:.]*)?(Z|[+-].*)?", text[10:]).groups("")  # type: ignore[union-attr]
    return (date.fromisoformat(text[:10]) + timedelta(days)).isoformat() + re.sub(r"\d", "0", time) + zone


def _generalized(value: Any, rule: Rule) -> Any:
    for condition, result in rule.given["cases"].items():
        if compiled(f"x.where({condition})")({"x": value}):
            return compiled(f"x.select({result})")({"x": value})[0]
    return value if str(rule.given.get("otherValues")).lower() == "keep" else None


def _read(rule: Any, parameters: Json, place: str) -> Rule:
    try:
        kind, steps = read_path(rule["path"])
        method = str(rule["method"]).lower()
    except (KeyError, TypeError, AttributeError):
        raise RuleFileError(f"{place}: a rule has a path and a method") from None
    except ValueError as error:
        raise RuleFileError(f"{place}.path: {error}") from None
    if method not in _METHODS:
        known = ", ".join(_METHODS)
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


def _is_reference(text: str, node: Node) -> bool:
    """Return whether only the id part of a text changes."""
    if node.name == "reference" and node.kind == "string":
        return True
    return node.kind == "uri" and any(form.fullmatch(text) for form in _RESOURCE_REFERENCES)


def _with_id(text: str, node: Node, change: Callable[[str], str]) -> str:
    """Return a changed text; of a reference only the id is changed."""
    if not _is_reference(text, node):
        return change(text)
    if text.startswith("#"):
        return f"#{change(text[1:])}"
    for form in _REFERENCES:
        if found := form.fullmatch(text):
            return f"{found[1]}{change(found[2])}{found[3] or ''}"
    return change(text)  # the type is lost
