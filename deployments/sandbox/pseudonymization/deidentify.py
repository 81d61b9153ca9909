"""Applies a rule file to a resource (document 3 §4).

A Bundle's own elements are handled by the rules for Bundles, then each entry's resource by those for its type, and so
on for contained resources. What a rule leaves empty is taken out; a resource stays. A criterion sees its element as
the rules before have left it.
"""

from __future__ import annotations

from deployments.sandbox.common.fhirpath import EvaluationError
from deployments.sandbox.common.json_text import JsonValue, copied, encode
from deployments.sandbox.common.r4 import CONCRETE_TYPES
from deployments.sandbox.pseudonymization.automaton import NO_RULE, Automaton, Edge, Place, Position, Test
from deployments.sandbox.pseudonymization.methods import method_of
from deployments.sandbox.pseudonymization.methods.dates import Calendar
from deployments.sandbox.pseudonymization.methods.keys import keys_of
from deployments.sandbox.pseudonymization.methods.method import Method, Reach
from deployments.sandbox.pseudonymization.methods.substitute import Substitute
from deployments.sandbox.pseudonymization.model import Kind
from deployments.sandbox.pseudonymization.path import RulePath, read_path
from deployments.sandbox.pseudonymization.problem import (
    MalformedResourceError,
    ProcessingFailureError,
    RuleFileError,
)
from deployments.sandbox.pseudonymization.rulefile import RuleFile
from deployments.sandbox.pseudonymization.security import Label, add_labels

JsonObject = dict[str, JsonValue]


class Engine:
    """The rules of one file, ready to be applied."""

    def __init__(self, rules: RuleFile, calendar: Calendar | None = None) -> None:
        """Raises ``RuleFileError`` for a rule that cannot be applied; the message gives its number."""
        keys = keys_of(rules)
        self.is_lasting = keys.is_lasting
        """Whether the same rules would have the same keys next time."""
        self.methods: list[Method] = []
        paths: list[RulePath] = []
        for number, rule in enumerate(rules.fhir_path_rules):
            try:
                paths.append(read_path(rule.path))
                self.methods.append(method_of(rule, rules.parameters, keys, calendar or Calendar()))
            except RuleFileError as error:
                raise RuleFileError(f"fhirPathRules.{number}: {error}") from None
        self.automaton = Automaton(paths)

    def process(self, resource: JsonObject) -> JsonObject:
        """Apply the rules to a resource, in place, and give it back.

        Raises ``MalformedResourceError`` for what is no R4 resource, ``ProcessingFailureError`` for a value that a
        method cannot handle.
        """
        try:
            return _Walk(self, resource).root()
        except RecursionError:
            raise MalformedResourceError("The resource is nested too deeply.") from None


class _Walk:
    """The way through one resource that was sent."""

    def __init__(self, engine: Engine, resource: JsonObject) -> None:
        self._automaton = engine.automaton
        self._methods = engine.methods
        self._root = resource
        self._first_id = _id(resource)
        self._id_rank = NO_RULE
        self._depth = 0
        self._labels: set[Label] = set()
        self._is_view = False
        self._dropped = NO_RULE
        """The ``substitute`` whose element is being emptied of everything that no rule before it handled."""
        self._outcomes: dict[tuple[Test, str, bytes], bool] = {}

    def note(self, label: Label) -> None:
        """Remember what was done."""
        self._labels.add(label)

    def seed(self, rank: int) -> str:
        """The id of the root resource, before or after the rule that changes it."""
        return self._first_id if self._depth == 1 and rank <= self._id_rank else _id(self._root)

    def root(self) -> JsonObject:
        """The whole resource. A ``remove`` on it empties it: it has nothing that it could be taken out of."""
        place = self._place(self._root, frozenset())
        self._id_rank = min(place.rank, place.edge("id").to().rank)
        self._resource(self._root, place, is_contained=False)
        return self._root

    def _place(self, element: JsonValue, outer: frozenset[Position]) -> Place:
        kind = element.get("resourceType") if isinstance(element, dict) else None
        if not isinstance(kind, str) or kind not in CONCRETE_TYPES:
            raise MalformedResourceError("There is a resource without a resourceType of FHIR R4.")
        return self._automaton.resource(kind, outer)

    def _resource(self, element: JsonObject, place: Place, *, is_contained: bool) -> None:
        before, self._labels = self._labels, set()
        place, rank = self._settled(element, place, NO_RULE)
        if rank != NO_RULE and self._method(rank).reach is Reach.SUBSTITUTE:
            raise ProcessingFailureError("substitute", place.element.location, "a whole resource")
        self._depth += 1
        self._elements(element, place, rank)
        self._depth -= 1
        if not is_contained:
            add_labels(element, self._labels)
        self._labels |= before

    def _object(self, element: JsonValue, place: Place, rank: int) -> JsonObject | None:
        """An object that is no resource: what becomes of it, None for nothing."""
        if type(element) is not dict:
            raise MalformedResourceError(f"{place.element.location} is not an object.")
        if place.tests:
            place, rank = self._settled(element, place, rank)
        rank = min(rank, place.rank)
        if rank != NO_RULE:
            method = self._method(rank)
            if method.reach is Reach.ELEMENT:
                self._labels.add("REDACTED")
                return None
            if isinstance(method, Substitute) and rank != self._dropped:
                return method.content(self._earlier(element, place, rank), place.element, self)
            if method.reach is Reach.NOTHING and place.lowest > rank and not place.holds_resources:
                return element
        self._elements(element, place, rank)
        return element or None

    def _elements(self, element: JsonObject, place: Place, rank: int) -> None:
        keys = tuple(element)
        for edge in place.plan(keys) if rank == NO_RULE else place.every(keys):
            if edge.kind is Kind.PRIMITIVE:
                self._primitive(element, edge, rank)
                continue
            old = element.get(edge.key)
            new: JsonValue
            if type(old) is list:
                new = [kept for item in old if (kept := self._item(item, edge, rank)) is not None] or None
            else:
                new = self._item(old, edge, rank)
            if new is None:
                element.pop(edge.key, None)
            elif new is not old:
                element[edge.key] = new

    def _item(self, item: JsonValue, edge: Edge, rank: int) -> JsonObject | None:
        if edge.kind is Kind.COMPLEX:
            return self._object(item, edge.to(), rank)
        if self._is_view:
            return item  # type: ignore[no-any-return]
        if self._dropped != NO_RULE:
            return None
        place = self._place(item, edge.outer)
        place, first = self._settled(item, place, NO_RULE)
        if first != NO_RULE and self._method(first).reach is Reach.ELEMENT:
            self._labels.add("REDACTED")
            return None
        self._resource(item, place, is_contained=edge.key == "contained")
        return item  # type: ignore[no-any-return]

    def _primitive(self, element: JsonObject, edge: Edge, rank: int) -> None:
        old, extra = element.get(edge.key), element.get(edge.extra)
        place = edge.to()
        if type(old) is not list and type(extra) is not list:
            new, new_extra = self._value(old, extra, place, rank)
            if new is not old:
                _put(element, edge.key, new)
            if extra is not None:
                _put(element, edge.extra, new_extra)
            return
        values, extras = _paired(old, extra, place)
        pairs = [self._value(value, beside, place, rank) for value, beside in zip(values, extras, strict=True)]
        pairs = [pair for pair in pairs if pair != (None, None)]
        _put(element, edge.key, [value for value, _ in pairs] if any(v is not None for v, _ in pairs) else None)
        _put(element, edge.extra, [e for _, e in pairs] if any(e is not None for _, e in pairs) else None)

    def _value(
        self, value: JsonValue, extra: JsonValue, place: Place, rank: int
    ) -> tuple[JsonValue, JsonObject | None]:
        """A primitive value and what stands beside it (id, extensions)."""
        if type(value) is dict or type(value) is list:
            raise MalformedResourceError(f"{place.element.location} is not a value.")
        if place.tests:
            place, rank = self._settled(value, place, rank)
        rank = min(rank, place.rank)
        if rank != NO_RULE:
            method = self._method(rank)
            if method.reach is Reach.ELEMENT:
                self._labels.add("REDACTED")
                return None, None
            if rank == self._dropped:
                value = None
            elif value is not None:
                value = method.value(value, place.element, rank, self)
            if method.reach is Reach.SUBSTITUTE and extra is not None:
                # A given value has no id and no extensions; what earlier rules handled there stays.
                return value, self._earlier(extra, place, rank)
        return value, None if extra is None else self._beside(extra, place, rank)

    def _beside(self, extra: JsonValue, place: Place, rank: int) -> JsonObject | None:
        if type(extra) is not dict:
            raise MalformedResourceError(f"{place.element.location} is not an object.")
        self._elements(extra, place, rank)
        return extra or None

    def _settled(self, value: JsonValue, place: Place, rank: int) -> tuple[Place, int]:
        """The place when its criteria are decided, and the rank of the rule that handles the element."""
        while place.tests:
            test = place.tests[0]
            # A rule that comes too late anyway need not be asked, unless it may go on into a resource.
            if test.rank >= min(rank, place.rank) and not place.holds_resources:
                place = place.after(test, holds=False)
            else:
                place = place.after(test, holds=value is not None and self._holds(test, value, place, rank))
        return place, min(rank, place.rank)

    def _holds(self, test: Test, value: JsonValue, place: Place, rank: int) -> bool:
        view = self._as_left_by_rules_before(test.rank, value, place, rank)
        if view is None:
            return False
        key = (test, place.element.type, encode(view))
        found = self._outcomes.get(key)
        if found is None:
            element = place.element
            try:
                found = test.criterion.holds(view, element.path if isinstance(view, dict) else element.type)
            except EvaluationError as error:
                raise ProcessingFailureError("where", element.location, str(error)) from None
            self._outcomes[key] = found
        return found

    def _as_left_by_rules_before(self, limit: int, value: JsonValue, place: Place, rank: int) -> JsonValue:
        before = place.limited(limit)
        inherited = rank if rank < limit else NO_RULE
        if inherited == NO_RULE and before.is_idle:
            return value
        saved = set(self._labels), self._is_view
        self._is_view = True
        if not isinstance(value, dict):
            seen: JsonValue = self._value(value, None, before, inherited)[0]
        elif before.element.kind is Kind.RESOURCE:
            seen = copied(value)
            self._elements(seen, before, min(inherited, before.rank))
        else:
            seen = self._object(copied(value), before, inherited)
        self._labels, self._is_view = saved
        return seen

    def _earlier(self, element: JsonValue, place: Place, rank: int) -> JsonObject | None:
        """What of an element is handled by rules before that rank, as they leave it."""
        before, self._dropped = self._dropped, rank
        kept = self._beside(element, place, rank)
        self._dropped = before
        return kept

    def _method(self, rank: int) -> Method:
        return self._methods[rank % self._automaton.count]


def _id(resource: JsonObject) -> str:
    found = resource.get("id")
    return found if isinstance(found, str) else ""


def _put(element: JsonObject, key: str, value: JsonValue) -> None:
    if value is None:
        element.pop(key, None)
    else:
        element[key] = value


def _paired(values: JsonValue, extras: JsonValue, place: Place) -> tuple[list[JsonValue], list[JsonValue]]:
    """A list of primitive values and the list beside it, both of the same length."""
    one, other = values or [], extras or []
    if type(one) is not list or type(other) is not list:
        raise MalformedResourceError(f"{place.element.location} is a list in one place and none in another.")
    length = max(len(one), len(other))
    return one + [None] * (length - len(one)), other + [None] * (length - len(other))
