"""Where rules apply: all paths of a rule file walked at once, from a resource down.

Of the rules that match an element or one above it in the same resource, the first of the file handles it; that is what
"first match wins, and what is handled is not touched again" comes to. So one walk from the top is enough: a ``Place``
knows which paths have come how far, and which of its rules is the first. Places are made when data first leads to them
and are kept, so that a resource like the ones before costs a few look-ups.

Rules are compared by *rank*: their number in the file. The rules that came from a Bundle into an entry's resource
(``Bundle.entry.resource…``) run before the resource's own, so their rank there is lower by the number of rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deployments.sandbox.pseudonymization.fhirpath import Expression
from deployments.sandbox.pseudonymization.model import Element, Kind, applies_to, child, is_a, resource_element
from deployments.sandbox.pseudonymization.path import ByName, ByType, Chain, Member, OfType, RulePath, Where
from deployments.sandbox.pseudonymization.problem import MalformedResourceError

NO_RULE = 1 << 30
"""The rank of no rule: higher than all."""
_REMEMBERED = 1_000
"""Combinations of keys that a place remembers. Clinical data has a few dozen; more, and it begins afresh."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A path that has come so far: rank of its rule, number of the chain, steps done."""

    rank: int
    chain: int
    steps: int


@dataclass(frozen=True, slots=True)
class Test:
    """A criterion that decides whether a path goes on; the element of a ``where``."""

    position: Position
    criterion: Expression

    @property
    def rank(self) -> int:
        """The rank of the rule."""
        return self.position.rank


@dataclass(frozen=True, slots=True)
class Known:
    """What is known about an element."""

    below: frozenset[Position]
    """Paths that go on below it."""
    tests: tuple[Test, ...]
    """Open criteria, by rank."""
    rank: int
    """The first rule that matches the element itself."""


class Edge:
    """The way from a place to the element with a JSON key."""

    __slots__ = ("element", "extra", "key", "kind", "outer", "place")

    def __init__(self, element: Element, place: Place | None, outer: frozenset[Position]) -> None:
        self.key = element.key
        self.extra = f"_{element.key}"
        """Key of id and extensions of a primitive."""
        self.kind = element.kind
        self.element = element
        self.place = place
        """None where a resource follows: its type decides."""
        self.outer = outer
        """Positions that lead into the resource."""

    def to(self) -> Place:
        """The place of an element that is no resource."""
        if self.place is None:
            raise AssertionError
        return self.place


class Place:
    """What is known about an element before looking at its content."""

    __slots__ = (
        "_edges",
        "_every",
        "_limited",
        "_plans",
        "_splits",
        "automaton",
        "element",
        "known",
        "lowest",
        "positions",
        "rank",
        "tests",
    )

    def __init__(self, automaton: Automaton, element: Element, known: Known) -> None:
        self.automaton = automaton
        self.element = element
        self.known = known
        self.positions, self.tests, self.rank = known.below, known.tests, known.rank
        self.lowest = min((position.rank for position in known.below), default=NO_RULE)
        """The first rule that may still match below."""
        self._edges: dict[str, Edge] = {}
        self._plans: dict[tuple[str, ...], tuple[Edge, ...]] = {}
        self._every: dict[tuple[str, ...], tuple[Edge, ...]] = {}
        self._splits: dict[tuple[Test, bool], Place] = {}
        self._limited: dict[int, Place] = {}

    @property
    def holds_resources(self) -> bool:
        """Whether a resource may be below."""
        return self.element.kind is Kind.RESOURCE or self.element.path.startswith(("Bundle", "Parameters"))

    @property
    def is_idle(self) -> bool:
        """Whether no rule can do anything here or below."""
        return not (self.positions or self.tests or self.rank != NO_RULE or self.holds_resources)

    def after(self, test: Test, *, holds: bool) -> Place:
        """This place when the outcome of its test is known."""
        found = self._splits.get((test, holds))
        if found is None:
            found = self._splits[test, holds] = self.automaton.split(self, test, holds=holds)
        return found

    def limited(self, rank: int) -> Place:
        """This place as the rules before that rank see it."""
        found = self._limited.get(rank)
        if found is None:
            below = frozenset(position for position in self.positions if position.rank < rank)
            tests = tuple(test for test in self.tests if test.rank < rank)
            known = Known(below, tests, self.rank if self.rank < rank else NO_RULE)
            found = self._limited[rank] = self.automaton.place(self.element, known)
        return found

    def plan(self, keys: tuple[str, ...]) -> tuple[Edge, ...]:
        """The ways worth going from an object with these keys that no rule handles as a whole."""
        found = self._plans.get(keys)
        if found is None:
            if len(self._plans) >= _REMEMBERED:
                self._plans.clear()
            found = self._plans[keys] = tuple(edge for edge in self.every(keys) if _is_worth(edge, keys))
        return found

    def every(self, keys: tuple[str, ...]) -> tuple[Edge, ...]:
        """All ways from an object with these keys, an ``id`` first. Raises ``MalformedResourceError``."""
        found = self._every.get(keys)
        if found is None:
            if len(self._every) >= _REMEMBERED:
                self._every.clear()
            named = dict.fromkeys(key.removeprefix("_") for key in keys if key != "resourceType")
            order = sorted(named, key=lambda key: key != "id")
            found = self._every[keys] = tuple(self.edge(key) for key in order)
        return found

    def edge(self, key: str) -> Edge:
        """The way to a JSON key. Raises ``MalformedResourceError`` for one that R4 does not have here."""
        found = self._edges.get(key)
        if found is None:
            element = child(self.element.path, key)
            if element is None:
                raise MalformedResourceError(f"{self.element.path} has an element that FHIR R4 does not know.")
            found = self._edges[key] = self.automaton.edge(self, element)
        return found


def _is_worth(edge: Edge, keys: tuple[str, ...]) -> bool:
    if edge.kind is Kind.RESOURCE:
        return True
    place = edge.to()
    if edge.kind is Kind.PRIMITIVE and edge.extra not in keys:
        return bool(place.tests) or place.rank != NO_RULE
    return not place.is_idle


class Automaton:
    """All paths of a rule file."""

    def __init__(self, paths: Sequence[RulePath]) -> None:
        self.count = len(paths)
        """How many rules there are."""
        self._paths = paths
        self._chains: list[Chain] = [chain for path in paths for chain in path.chains]
        self._starts = [
            (path, Position(rank, number, 0))
            for number, (rank, path) in enumerate((rank, path) for rank, path in enumerate(paths) for _ in path.chains)
        ]
        self._places: dict[tuple[Element, Known], Place] = {}
        self._resources: dict[tuple[str, frozenset[Position]], Place] = {}

    def resource(self, kind: str, outer: frozenset[Position] = frozenset()) -> Place:
        """The place of a resource; ``outer`` are the positions that led to it."""
        found = self._resources.get((kind, outer))
        if found is None:
            own = {position for path, position in self._starts if applies_to(path.resource_type, kind)}
            inherited = {Position(item.rank - self.count, item.chain, item.steps) for item in outer}
            element = resource_element(kind)
            found = self._resources[kind, outer] = self.place(element, self._arrived(element, own | inherited))
        return found

    def place(self, element: Element, known: Known) -> Place:
        """The place of an element with what is known about it."""
        found = self._places.get((element, known))
        if found is None:
            found = self._places[element, known] = Place(self, element, known)
        return found

    def edge(self, place: Place, element: Element) -> Edge:
        """The way from a place to an element."""
        moved = {
            Position(item.rank, item.chain, item.steps + 1)
            for item in place.positions
            if isinstance(step := self._step(item), Member) and step.name == element.name
        }
        if element.kind is Kind.RESOURCE:
            return Edge(element, None, frozenset(moved))
        lasting = {item for item in place.positions if isinstance(self._step(item), ByType | ByName)}
        return Edge(element, self.place(element, self._arrived(element, moved | lasting)), frozenset())

    def split(self, place: Place, test: Test, *, holds: bool) -> Place:
        """The place after a test."""
        known = place.known
        below, tests, rank = known.below, [other for other in known.tests if other is not test], known.rank
        if holds:
            more = self._arrived(place.element, {Position(test.rank, test.position.chain, test.position.steps + 1)})
            below, rank = below | more.below, min(rank, more.rank)
            tests = _sorted([*tests, *more.tests])
        return self.place(place.element, Known(below, tuple(tests), rank))

    def _arrived(self, element: Element, positions: Iterable[Position]) -> Known:
        """Go all steps that stay on the element."""
        waiting, seen = list(positions), set[Position]()
        below, tests, rank = set[Position](), list[Test](), NO_RULE
        while waiting:
            position = waiting.pop()
            if position in seen:
                continue
            seen.add(position)
            on = Position(position.rank, position.chain, position.steps + 1)
            match self._step(position):
                case None:
                    rank = min(rank, position.rank)
                case Member():
                    below.add(position)
                case ByType(name):
                    below.add(position)
                    waiting.extend([on] if element.type == name else [])
                case ByName(name):
                    below.add(position)
                    waiting.extend([on] if element.name == name else [])
                case OfType(name):
                    waiting.extend([on] if is_a(element.type, name) else [])
                case Where(criterion):
                    tests.append(Test(position, criterion))
        return Known(frozenset(below), tuple(_sorted(tests)), rank)

    def _step(self, position: Position) -> Member | ByType | ByName | OfType | Where | None:
        chain = self._chains[position.chain]
        return chain[position.steps] if position.steps < len(chain) else None


def _sorted(tests: Iterable[Test]) -> list[Test]:
    return sorted(tests, key=lambda test: test.position)
