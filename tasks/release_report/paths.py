"""Count values by their path in a resource. The paths are a tree that grows with the first resources.

So the walk over a resource costs one dictionary look-up for each element.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tasks.release_report.dates import precision_of
from tasks.release_report.kinds import CODE_TEXT, DISPLAY, MAYBE_TEXT, TEXT, is_persons, kind_of
from tasks.release_report.measured import IdentifyingPath
from tasks.release_report.numbers import Tally
from tasks.shared.fhir.persons import Kind
from tasks.shared.fhir.resource import TYPE

OTHERS: Final = "…"
"""Stands for a name that cannot be shown, or is one of too many."""

MOST_NAMES: Final = 200
"""Most elements, URLs and identifier systems that are distinguished at one place. Rules that encrypt them, and
converters that write ids as names, make a new one in each resource."""

_NAME: Final = re.compile(r"_?[A-Za-z][A-Za-z0-9]{0,63}")
_TEXTS: Final = frozenset({TEXT, CODE_TEXT, MAYBE_TEXT})
_SPLIT: Final = {
    "extension": "url",
    "modifierExtension": "url",
    "contained": "resourceType",
    "resource": "resourceType",
}
_REGION: Final = re.compile(r"\s*\w{0,2}(?:[*xX#_.\s-]*|0{3,}\s*)")
"""Two characters of a postal code, whatever fills the others."""


class Position:
    """The position of the pass: line, patient (a hash; ``None``: no patient), and number of the run.

    A run is consecutive data of one patient or of none. ``exact`` is set after the pass if each patient had one run.
    """

    __slots__ = ("exact", "k", "line", "patient", "run", "runs")

    def __init__(self, k: int) -> None:
        self.k = k
        self.exact = False
        self.line = self.run = self.runs = 0
        self.patient: int | None = None

    def begin(self, patient: int | None) -> None:
        """Begin a run of data of a patient."""
        self.run += 1
        self.runs += patient is not None
        self.patient = patient


class Sightings:
    """Lines and runs of patients with one kind of value, and the first ``k`` of these patients."""

    __slots__ = ("few", "line", "lines", "nobody", "run", "runs")

    def __init__(self) -> None:
        self.few: set[int] = set()
        self.line = self.run = -1
        self.lines = self.nobody = self.runs = 0

    def see(self, at: Position) -> None:
        """Count the position."""
        if self.run == at.run:
            return
        self.run = at.run
        new, self.line = self.line != at.line, at.line
        self.lines += new
        if at.patient is None:
            self.nobody += new
        else:
            self.runs += 1
            if len(self.few) < at.k:
                self.few.add(at.patient)

    def tally(self, at: Position) -> Tally:
        """Return the counts, after the pass."""
        few = len(self.few)
        return Tally(self.runs if at.exact else few, at.exact or few < at.k, self.lines, self.nobody)


def tallies(seen: Mapping[str, Sightings], at: Position) -> dict[str, Tally]:
    """Return the counts by name, after the pass."""
    return {name: one.tally(at) for name, one in seen.items()}


class Found:
    """The sightings of one kind of value at a path."""

    __slots__ = ("kind", "path", "seen", "systems", "urls")

    def __init__(self, path: str, kind: str) -> None:
        self.path = path
        self.kind = kind
        self.seen = Sightings()
        self.systems: dict[str, Sightings] = {}
        self.urls: dict[str, Sightings] = {}

    def result(self, at: Position) -> IdentifyingPath:
        """Return the counts without the patients, after the pass."""
        kind = TEXT if self.kind == MAYBE_TEXT else self.kind
        return IdentifyingPath(self.path, kind, self.seen.tally(at), tallies(self.urls, at), tallies(self.systems, at))


class Node:
    """An element: its path, its names from the innermost resource on, and the elements below it by name.

    ``split`` is the member that distinguishes the objects here, such as ``url``. ``kind`` is that of a leaf. Both can
    be blank.
    """

    __slots__ = ("below", "found", "kind", "names", "path", "resource", "seen", "split", "url")

    def __init__(self, path: str, resource: str, names: tuple[str, ...] = (), url: str = "") -> None:
        self.below: dict[str, Node] = {}
        self.path = path
        self.resource = resource
        self.names = names
        self.url = url
        self.split = ""
        self.kind = ""
        self.found: Found | None = None
        self.seen: Sightings | None = None


class Paths:
    """All paths of a delivery."""

    def __init__(self, at: Position) -> None:
        self.at = at
        self.types: dict[str, Sightings] = {}
        self.extensions: dict[str, Sightings] = {}
        self._found: dict[tuple[str, str], Found] = {}
        self._roots: dict[str, Node] = {}

    def found(self, path: str, kind: str) -> Found:
        """Return the sightings of a kind at a path."""
        return self._found.setdefault((path, kind), Found(path, kind))

    def result(self) -> Iterator[IdentifyingPath]:
        """Yield the counts of each path and kind, after the pass."""
        return (one.result(self.at) for one in self._found.values() if one.seen.lines)

    def read(self, resource: Mapping[str, Any], name: str) -> None:
        """Count a resource of type ``name``, and the values in it."""
        self.types.setdefault(name, Sightings()).see(self.at)
        self._walk(resource, self._roots.setdefault(name, Node(name, name)))

    def _walk(self, members: Mapping[str, Any], node: Node) -> None:
        below = node.below
        for key, value in members.items():
            inner = below.get(key)
            if inner is None:
                inner = self._child(node, key)
            of = type(value)
            if of is str:
                if inner.kind:
                    self._see(inner, value, members)
            elif of is dict:
                self._walk(value, self._split(inner, value) if inner.split else inner)
            elif of is list:
                self._walk_list(value, inner, members)
            elif inner.kind and inner.kind not in _TEXTS and value is not None:
                self._see(inner, str(value), members)

    def _walk_list(self, items: list[Any], node: Node, members: Mapping[str, Any]) -> None:
        for item in items:
            of = type(item)
            if of is dict:
                self._walk(item, self._split(node, item) if node.split else node)
            elif of is list:
                self._walk_list(item, node, members)
            elif of is str and node.kind:
                self._see(node, item, members)

    def _child(self, node: Node, key: str) -> Node:
        shown = key if _NAME.fullmatch(key) and len(node.below) < MOST_NAMES else OTHERS
        names = (*node.names, key.removeprefix("_"))
        child = Node(_path(node, shown), node.resource, names, node.url)
        child.split = _SPLIT.get(key, "")
        child.kind = kind_of(node.resource, names, node.url)
        return _kept(node, key, child)

    def _split(self, node: Node, members: Mapping[str, Any]) -> Node:
        """Return the node of an object by its type or URL."""
        text = members.get(node.split)
        if not isinstance(text, str):
            return node
        inner = node.below.get(f"({text})")
        if inner is None:
            child = self._of_url(node, text) if node.split == "url" else _of_type(node, text)
            inner = _kept(node, f"({text})", child)
        if inner.seen is not None:
            inner.seen.see(self.at)
        return inner

    def _of_url(self, node: Node, url: str) -> Node:
        whole = url if ":" in url or not node.url else f"{node.url}/{url}"
        inner = Node(node.path, node.resource, node.names, whole)
        if ":" in url:
            inner.seen = _of_text(self.extensions, url)
        return inner

    def _see(self, node: Node, value: str, members: Mapping[str, Any]) -> None:
        kind = node.kind
        if not value.strip() or (kind == MAYBE_TEXT and " " not in value.strip()):
            return
        if kind == Kind.BIRTH_DATE and precision_of(value) != "day":
            return
        if kind == DISPLAY and not is_persons(members, node.names[-2] if len(node.names) > 1 else ""):
            return
        if kind == Kind.PLACE and node.names[-1] == "postalCode" and _REGION.fullmatch(value):
            return
        found = node.found
        if found is None:
            found = node.found = self.found(node.path, kind)
        found.seen.see(self.at)
        if node.url:
            _of_text(found.urls, node.url).see(self.at)
        if kind == Kind.IDENTIFIER:
            system = members.get("system")
            _of_text(found.systems, system if isinstance(system, str) else "").see(self.at)


def _of_type(node: Node, name: str) -> Node:
    name = name if TYPE.fullmatch(name) and len(node.below) < MOST_NAMES else OTHERS
    return Node(_path(node, name), name)


def _path(node: Node, name: str) -> str:
    return node.path if node.path.endswith(OTHERS) else f"{node.path}.{name}"


def _kept(node: Node, key: str, child: Node) -> Node:
    """Keep a node while there is room; a further one is made anew each time."""
    if len(node.below) < MOST_NAMES:
        node.below[key] = child
    return child


def _of_text(texts: dict[str, Sightings], text: str) -> Sightings:
    """Return the sightings of a text, or those of ``OTHERS`` if there are too many texts."""
    return texts.setdefault(text if text in texts or len(texts) < MOST_NAMES else OTHERS, Sightings())
