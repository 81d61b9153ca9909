"""Structural rules: allowed elements, their number, type and format.

One pass over a resource, in the order of the document. Nested resources (Bundle entries, contained ones, Parameters)
follow the same rules. The pass also collects every element with an invariant.

Two formats are interpreted differently from the schema's text. White space in its patterns is ASCII white space, as in
the specification's text; the pattern would refuse a no-break space in a name. And its patterns of numbers, which JSON
schema does not apply to numbers, hold for the value: an integer has no fraction and 32 bits.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from itertools import zip_longest
from typing import Any

from deployments.sandbox.common.definitions.schema import Definition, ElementContent, Invariant, Property, Schema
from deployments.sandbox.validation.issue import ElementPlace, Message, ValidatorIssue

_BASE64 = re.compile(r"[0-9a-zA-Z+/=\s]*", re.ASCII)
_NUMBERS = frozenset({"decimal", "integer", "positiveInt", "unsignedInt"})
_LOWEST = {"integer": -(2**31), "unsignedInt": 0, "positiveInt": 1}
_HIGHEST = 2**31 - 1
_CALENDAR = frozenset({"date", "dateTime", "instant"})


def json_type(kind: str) -> str:
    """Return the JSON type of a primitive: ``number``, ``boolean`` or ``string``."""
    if kind in _NUMBERS:
        return "number"
    return "boolean" if kind == "boolean" else "string"


def has_json_type(kind: str, value: object) -> bool:
    """Return True if a value has the JSON type of the primitive."""
    if kind in _NUMBERS:
        return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)
    return isinstance(value, bool if kind == "boolean" else str)


def is_well_formed(kind: str, pattern: str | None, value: object) -> bool:
    """Return True if a value of the right JSON type has the primitive's format."""
    if isinstance(value, str):
        if kind == "base64Binary":
            return _is_base64(value)
        if pattern is not None and _matcher(pattern)(value) is None:
            return False
        return kind not in _CALENDAR or _is_in_the_calendar(value)
    if kind in _LOWEST:
        return isinstance(value, int) and _LOWEST[kind] <= value <= _HIGHEST
    return True


@functools.cache
def _matcher(pattern: str) -> Callable[[str], object]:
    return re.compile(pattern, re.ASCII).fullmatch


def _is_base64(value: str) -> bool:
    """Match ``^(\\s*([0-9a-zA-Z\\+/=]){4}\\s*)+$`` in linear time."""
    groups = value.split()
    return bool(groups) and _BASE64.fullmatch(value) is not None and all(len(each) % 4 == 0 for each in groups)


def _is_in_the_calendar(value: str) -> bool:
    """Return True if the day exists; the pattern does not check the length of months."""
    if len(value) < len("2024-02-30"):
        return True
    try:
        date.fromisoformat(value[:10])
    except ValueError:
        return False
    return True


MAX_DEPTH = 100
"""Maximum nesting of objects; real resources have about ten levels."""

_SHOWN = 40
"""Number of codes of a list in a finding."""

Node = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Visit:
    """An element with invariants to evaluate."""

    element: Any
    path: str
    place: ElementPlace
    invariants: tuple[Invariant, ...]
    resource: Node
    root: Node


@dataclass(frozen=True, slots=True)
class _WalkContext:
    """Position of the pass: depth and enclosing resources."""

    resource: Node
    root: Node
    depth: int

    def deeper(self) -> _WalkContext:
        return _WalkContext(self.resource, self.root, self.depth + 1)


class Walk:
    """One pass over a resource that collects ``issues`` and ``visits``."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.issues: list[ValidatorIssue] = []
        self.visits: list[Visit] = []
        self.types: Counter[str] = Counter()
        """Number of resources by type."""
        self.with_profile = 0
        """Number of resources with a profile in ``meta.profile``."""

    def resource(self, value: Any, above: ElementPlace | None, container: Node | None = None, depth: int = 0) -> None:
        """Check a whole resource. ``above``: its location; None for the body of a request.

        ``container`` is the resource that contains it (``contained``).
        """
        kind = value.get("resourceType") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in self._schema.resources:
            what = f"resourceType {_excerpt(kind)} is not one of FHIR R4" if isinstance(value, dict) else "no object"
            self._report(Message.NOT_A_RESOURCE, above or ElementPlace("Resource"), what)
            return
        self.types[kind] += 1
        meta = value.get("meta")
        self.with_profile += isinstance(meta, dict) and bool(meta.get("profile"))
        place = ElementPlace(kind) if above is None else ElementPlace(f"ofType({kind})", above)
        inside = _WalkContext(value, container or value, depth)
        self._object(value, self._schema.definitions[kind], place, inside)

    def _report(self, message: Message, place: ElementPlace, diagnostics: str) -> None:
        self.issues.append(ValidatorIssue(message, place, f"{place.expression}: {diagnostics}"))

    def _object(
        self,
        value: Node,
        definition: Definition,
        place: ElementPlace,
        inside: _WalkContext,
        *,
        is_beside_a_value: bool = False,
    ) -> None:
        if inside.depth >= MAX_DEPTH:
            self._report(Message.TOO_DEEP, place, f"more than {MAX_DEPTH} levels")
            return
        content = value.keys() if is_beside_a_value or value is inside.resource else value.keys() - {"id"}
        if not content:
            self._report(Message.EMPTY, place, "the object has no content (ele-1)")
        inner = inside.deeper()
        for key, held in value.items():
            found = definition.properties.get(key)
            if found is None:
                self._report(
                    Message.UNKNOWN_ELEMENT,
                    ElementPlace(key, place),
                    f"{definition.path} has no element {_excerpt(key)}",
                )
            else:
                self._property(held, found, value, ElementPlace(found.step, place), inner)
        for base, keys in definition.required.items():
            if value.keys().isdisjoint(keys):
                self._report(Message.MINIMUM, ElementPlace(base, place), "minimum required = 1, but only found 0")
        for base, all_keys in definition.choices.items():
            present = {key.removeprefix("_") for key in all_keys & value.keys()}
            if len(present) > 1:
                self._report(Message.CHOICE, ElementPlace(base, place), f"found {', '.join(sorted(present))}")
        if definition.invariants:
            self._visit(value, definition.path, place, definition.invariants, inside)

    def _property(self, value: Any, found: Property, owner: Node, place: ElementPlace, inside: _WalkContext) -> None:
        partner = owner.get(found.partner) if found.partner else None
        if not found.is_list:
            if isinstance(value, list):
                self._report(Message.NO_LIST_EXPECTED, place, "found a list")
            else:
                self._value(value, partner, found, place, inside)
            return
        if not isinstance(value, list):
            self._report(Message.LIST_EXPECTED, place, f"found {_spoken(value)}")
            return
        if not value:
            self._report(Message.EMPTY, place, "the list is empty")
        beside = partner if isinstance(partner, list) else []
        for each, other, number in zip_longest(value, beside[: len(value)], range(len(value))):
            if each is None and other is not None:
                continue  # its content is in the partner property (specification, JSON format)
            self._value(each, other, found, ElementPlace(place.step, place.above, number), inside)

    def _value(self, value: Any, beside: Any, found: Property, place: ElementPlace, inside: _WalkContext) -> None:
        """Check one value. ``beside``: its companion, a primitive's extensions or their primitive."""
        if found.content is ElementContent.PRIMITIVE:
            self._primitive(value, found, place)
        elif found.content is ElementContent.COMPLEX:
            if isinstance(value, dict):
                definition = self._schema.definitions[found.type]
                self._object(value, definition, place, inside, is_beside_a_value=beside is not None)
                if found.concepts is not None:
                    self._concept(value, found.concepts, place)
            else:
                self._report(Message.WRONG_TYPE, place, f"expected an object ({found.type}), found {_spoken(value)}")
        elif found.content is ElementContent.RESOURCE:
            is_contained = found.step == "contained"
            self.resource(value, place, inside.root if is_contained else None, inside.depth)
        if found.invariants:
            self._visit(value, found.type, place, found.invariants, inside)

    def _primitive(self, value: Any, found: Property, place: ElementPlace) -> None:
        if not has_json_type(found.type, value):
            expected = f"a {json_type(found.type)} ({found.type})"
            self._report(Message.WRONG_TYPE, place, f"expected {expected}, found {_spoken(value)}")
        elif found.codes is not None:
            if value not in found.codes:
                self._report(Message.CODE, place, f"{_excerpt(value)} is not one of {_some(found.codes)}")
        elif not is_well_formed(found.type, found.pattern, value):
            self._report(Message.FORMAT, place, f"{_excerpt(value)} is not a valid {found.type}")

    def _concept(self, value: Node, allowed: frozenset[tuple[str, str]], place: ElementPlace) -> None:
        """Report a concept without a coding in the list, also one without any coding, as real validators do."""
        codings = value.get("coding")
        listed = [each for each in codings if isinstance(each, dict)] if isinstance(codings, list) else []
        coded = ((each.get("system"), each.get("code")) for each in listed)
        if allowed.isdisjoint(pair for pair in coded if all(isinstance(part, str) for part in pair)):
            expected = _some({f"{system}|{code}" for system, code in allowed})
            self._report(Message.CODE, place, f"none of its codings is one of {expected}")

    def _visit(
        self, value: Any, path: str, place: ElementPlace, invariants: tuple[Invariant, ...], inside: _WalkContext
    ) -> None:
        self.visits.append(Visit(value, path, place, invariants, inside.resource, inside.root))


def _some(codes: Collection[str]) -> str:
    """Return the codes of a list, shortened if it is long."""
    shown = sorted(codes)[:_SHOWN]
    return ", ".join(shown) + (f", and {len(codes) - len(shown)} more" if len(codes) > len(shown) else "")


def _spoken(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _excerpt(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
