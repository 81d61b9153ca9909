"""A replica of the deployed pseudonymization service: what it makes of a resource under a rule file.

It follows document 6 §1, from the public source of the service (2.32 to 2.37.2): the first rule that touches an element
has it, with all below it but nested resources, which have a turn of their own. It does not follow the order in which
the service writes elements, knows of FHIRPath in a path names, ``nodesByType``, ``nodesByName`` and ``where`` only,
and has no key derivation, no perturb, no partial ages and postal codes.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple

import fhirpathpy
import msgspec
import yaml
from fhirpathpy.models import models

from tests.peers.server import Reply, SeenRequest
from tests.peers.services import JSON, deidentify, issue, outcome

Json = dict[str, Any]

_R4: Final = models["r4"]
_TYPES: Final[dict[str, str]] = _R4["path2Type"]
_ELSEWHERE: Final[dict[str, str]] = _R4["pathsDefinedElsewhere"]
_CHOICES: Final = {
    f"{base}{kind}": (base.rpartition(".")[2], kind[0].lower() + kind[1:])
    for base, kinds in _R4["choiceTypePaths"].items()
    for kind in kinds
}
_RESOURCES: Final = "|".join(kind for kind, parent in _R4["type2Parent"].items() if parent.endswith("Resource"))
_ALL: Final = frozenset({"", "Resource", "DomainResource"})
_DATES: Final = frozenset({"date", "dateTime", "instant"})
_STEP: Final = re.compile(r"(\w+)(?:\((.*)\))?", re.DOTALL)
_MOST: Final = 30_000_000
_OBSERVATION_VALUE: Final = "http://terminology.hl7.org/CodeSystem/v3-ObservationValue"
_LABELS: Final = {
    "redact": "REDACTED", "cryptohash": "CRYTOHASH", "encrypt": "MASKED", "dateshift": "PERTURBED",
    "substitute": "SUBSTITUTED", "generalize": "GENERALIZED", "pseudonymize": "PSEUDED",
}  # fmt: skip

_ID: Final = r"([A-Za-z0-9\-.]{1,64})"
_RESOURCE_REFERENCES: Final = (
    # No hyphen and no underscore in the base URL: so it is there.
    re.compile(rf"((?:https?://[A-Za-z0-9\\/.:%$]*)?(?:{_RESOURCES})/){_ID}(/_history/[A-Za-z0-9\-.]{{1,64}})?"),
    re.compile(rf"((?:(?:{_RESOURCES})\?)?identifier=(?:https?://[A-Za-z0-9\\/.:%$\-]*\|)?){_ID}()"),
)
_REFERENCES: Final = (
    *_RESOURCE_REFERENCES,
    re.compile(r"(urn:oid:)([0-2](?:\.(?:0|[1-9][0-9]*))+)()"),
    re.compile(r"(urn:uuid:)([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})()"),
)


class ProcessingError(Exception):
    """The service failed in its work: 500, or 422 for a missing domain in the newest versions."""


@dataclass(frozen=True)
class Settings:
    """How the service is set up: its own ``rules`` (YAML), and what it and the pseudonym service behind it are like.

    ``domains`` are those that exist in the pseudonym service; ``None``: each does. ``newest`` answers 422 for a missing
    one. ``ignores_config`` is a service before 2.34.0. ``escapes`` has the second serializer. With ``replicas`` each
    request goes to the next process, and each process makes the keys that the rules do not give at its start.
    """

    rules: str = "fhirPathRules: [{path: Resource, method: redact}]"
    domains: frozenset[str] | None = None
    newest: bool = False
    ignores_config: bool = False
    escapes: bool = False
    replicas: int = 1


class Replica:
    """The service; ``restart`` starts its processes again, with new random keys."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._numbers = itertools.count()
        self.restart()

    def restart(self) -> None:
        """Start all processes again."""
        keys = [secrets.token_hex(16) for _ in range(self.settings.replicas)]
        self._processes = [(key, Rules(self.settings.rules, key, self.settings.domains)) for key in keys]

    def __call__(self, seen: SeenRequest) -> Reply:
        """Answer a request."""
        path = seen.target.partition("?")[0]
        if seen.method == "GET" and path == "/fhir/metadata":
            statement = {"resourceType": "CapabilityStatement", "fhirVersion": "4.0.1", "rest": [{"mode": "server"}]}
            return Reply(200, json.dumps(statement).encode(), JSON)
        if seen.method != "POST" or path != "/fhir/$de-identify":
            return Reply(404)
        if len(seen.body) > _MOST:
            return Reply(413)
        key, own = self._processes[next(self._numbers) % len(self._processes)]
        try:
            text, config = deidentify(seen.body)
            given = msgspec.json.Decoder(float_hook=Decimal).decode(text)
            sent = config is not None and not self.settings.ignores_config
            rules = Rules((config or b"").decode(), key, self.settings.domains) if sent else own
        except (ValueError, KeyError):
            return Reply(400, outcome(issue(code="processing")), JSON)
        try:
            made = rules.apply(given)
        except ProcessingError as error:
            said = outcome(issue("fatal", "processing", diagnostics=f"An internal error occurred: {error}"))
            return Reply(422 if self.settings.newest else 500, said, JSON)
        answer = msgspec.json.Encoder(decimal_format="number").encode(made)
        return Reply(200, _escaped(answer) if self.settings.escapes else answer, JSON)


replica = Replica
"""``ScriptedServer(replica(settings), script)``"""


def _escaped(text: bytes) -> bytes:
    """Return JSON as the second serializer of the service writes it."""

    def units(found: re.Match[str]) -> str:
        return re.sub("....", r"\\u\g<0>", found[0].encode("utf-16-be").hex().upper())

    return re.sub(r"[^\x00-\x7f]|[+<>&']", units, text.decode()).encode()


# A resource as a tree


@dataclass(eq=False)
class Node:
    """An element: its place in what holds it, its name, its type, and the path at which its children are defined.

    The children of a primitive are those of its sibling (``_birthDate``). A resource has ``is_resource``.
    """

    holder: Any
    key: Any
    name: str
    kind: str
    path: str
    is_resource: bool = False
    is_handled: bool = False
    children: list[Node] = field(default_factory=list)

    @property
    def value(self) -> Any:
        return self.holder.get(self.key) if isinstance(self.holder, dict) else self.holder[self.key]

    def set(self, value: Any) -> None:
        """Put another value in place; ``None`` takes it away."""
        if value is None and isinstance(self.holder, dict):
            self.holder.pop(self.key, None)
        else:
            self.holder[self.key] = value

    def below(self) -> Iterator[Node]:
        """Yield the node and all below it in the same resource."""
        yield self
        for child in self.children:
            if not child.is_resource:
                yield from child.below()

    def nested(self) -> Iterator[Node]:
        """Yield the next resources below it."""
        for child in self.children:
            yield from (child,) if child.is_resource else child.nested()


def _resource(holder: Any, key: Any, name: str = "") -> Node:
    kind = str(holder[key].get("resourceType"))
    node = Node(holder, key, name or kind, kind, kind, is_resource=True)
    node.children = [*_children(holder[key], kind)]
    return node


def _children(members: Json, path: str) -> Iterator[Node]:
    for key in dict.fromkeys(key.removeprefix("_") for key in members if key != "resourceType"):
        full = _ELSEWHERE.get(f"{path}.{key}", f"{path}.{key}")
        name, kind = _CHOICES.get(full, (key, ""))
        kind = _TYPES.get(full, kind)
        if kind == "System.String":
            kind = "uri" if key == "url" else "id" if path in _RESOURCES.split("|") else "string"
        beside = members.get(f"_{key}")
        value = members.get(key, [None] * len(beside) if isinstance(beside, list) else None)
        places: list[tuple[Any, Any]] = (
            [(value, at) for at in range(len(value))] if isinstance(value, list) else [(members, key)]
        )
        for holder, at in places:
            item = holder[at] if isinstance(holder, list) else value
            if kind == "Resource":
                yield _resource(holder, at, name)
                continue
            node = Node(holder, at, name, kind, full if not kind else "Element" if kind[0].islower() else kind)
            extra = beside[at] if isinstance(beside, list) and at < len(beside) else beside
            inner = item if isinstance(item, dict) else extra
            node.children = [*_children(inner, node.path)] if isinstance(inner, dict) else []
            yield node


def _clean(value: Any) -> Any:
    """Return a value without what became empty; a resource stays."""
    if isinstance(value, list):
        return [item for item in map(_clean, value) if item not in (None, {}, [])]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, item in value.items():
        other = key[1:] if key.startswith("_") else f"_{key}"
        if isinstance(item, list) and isinstance(value.get(other), list):  # both lists belong together
            made = [_clean(one) or None for one in item]
            made = made if any(one is not None for one in made) else []
        else:
            made = _clean(item)
        if made not in (None, {}, []):
            kept[key] = made
    return kept


@lru_cache(maxsize=500)
def _compiled(expression: str) -> Callable[..., list[Any]]:
    return fhirpathpy.compile(expression, _R4)


def _steps(path: str) -> list[str]:
    """Split a path at the dots outside parentheses."""
    parts, depth = [""], 0
    for sign in path:
        depth += (sign == "(") - (sign == ")")
        if sign == "." and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _matches(steps: list[str], resource: Node) -> list[Node]:
    found = [resource]
    for step in steps:
        name, argument = _STEP.fullmatch(step).groups()  # type: ignore[union-attr]
        if argument is None:
            found = [child for node in found for child in node.children if child.name == name]
        elif name == "where":
            holds = _compiled(f"where({argument})")
            found = [node for node in found if holds(_clean(node.value))]
        else:
            wanted = argument.strip("'\"")
            below = dict.fromkeys(each for node in found for each in node.below())
            found = [each for each in below if wanted == (each.kind if name == "nodesByType" else each.name)]
    return found


class Rule(NamedTuple):
    """One rule: resource type, steps from there, method in lower case, and its settings."""

    kind: str
    steps: list[str]
    method: str
    given: Json


class Rules:
    """A rule file, as a process of the service uses it. Raises ``ValueError``: 400."""

    def __init__(self, text: str, key: str, domains: frozenset[str] | None) -> None:
        try:
            document = yaml.safe_load(text)
            parameters = document.get("parameters") or {}
            self._rules = [self._rule(rule, parameters) for rule in document["fhirPathRules"]]
        except (yaml.YAMLError, AttributeError, KeyError, TypeError):
            raise ValueError("rules") from None
        self._key = str(parameters.get("cryptoHashKey") or key)
        self._years = bool(parameters.get("enablePartialDatesForRedact"))
        self._domains = domains

    def _rule(self, rule: Json, parameters: Json) -> Rule:
        first, *rest = _steps(rule["path"])
        kind, steps = (first, rest) if first[:1].isupper() else ("", [first, *rest])
        method = rule["method"].lower()
        if not all(map(_STEP.fullmatch, steps)) or getattr(self, f"_{method}", None) is None:
            raise ValueError("rule")
        key = parameters.get("dateShiftKey") or secrets.token_hex(16)  # for each rule object
        return Rule(kind, steps, method, rule | {"key": key, "days": parameters.get("dateShiftFixedOffsetInDays")})

    def apply(self, given: Json) -> Json:
        """Return what the rules make of a resource. Raises ``ProcessingError``."""
        holder = [given]
        self._visit(_resource(holder, 0), given)
        made: Json = _clean(holder[0])
        return made

    def _visit(self, resource: Node, root: Json) -> set[str]:
        """Apply the rules to a resource and those in it; return the labels of what was done."""
        done: set[str] = set()
        for rule in self._rules:
            if rule.kind == resource.kind or rule.kind in _ALL:
                for node in _matches(rule.steps, resource):
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
            node.set(rule.given.get("replaceWith"))
            return
        for each in node.below():
            if not each.is_handled:
                each.is_handled = True
                if not isinstance(each.value, dict) and each.value not in (None, ""):
                    each.set(getattr(self, f"_{rule.method}")(each.value, each, rule, root))

    def _keep(self, value: Any, *_: Any) -> Any:
        return value

    _remove = _substitute = _keep

    def _redact(self, value: Any, node: Node, *_: Any) -> Any:
        if not self._years or node.kind not in _DATES or _is_old(str(value)):
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
            return hashlib.sha256(f"{full}|{original}".encode()).hexdigest()[:24].upper()

        return _changed(text, node, pseudonym)

    def _encrypt(self, value: Any, *_: Any) -> str:
        blocks = len(str(value).encode()) // 16 + 1
        return os.urandom(16 + 16 * blocks).hex().upper()

    def _generalize(self, value: Any, _node: Node, rule: Rule, _root: Json) -> Any:
        cases = rule.given["cases"]
        for condition, result in (json.loads(cases) if isinstance(cases, str) else cases).items():
            if _compiled(f"x.where({condition})")({"x": value}):
                return _compiled(f"x.select({result})")({"x": value})[0]
        return value if str(rule.given.get("otherValues")).lower() == "keep" else None

    def _dateshift(self, value: Any, node: Node, rule: Rule, root: Json) -> Any:
        if node.kind not in _DATES:
            return value
        text = str(value)
        if len(text) < 10 or _is_old(text):
            return self._redact(value, node)
        offset = 0
        for byte in f"{root.get('id', '')}{rule.given['key']}".encode():
            offset = (offset * 131 + byte) % 101
        days = offset - 50 if rule.given["days"] is None else int(rule.given["days"])
        time, zone = re.fullmatch(r"(T[\d:.]*)?(Z|[+-].*)?", text[10:]).groups("")  # type: ignore[union-attr]
        return (date.fromisoformat(text[:10]) + timedelta(days)).isoformat() + re.sub(r"\d", "0", time) + zone


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
