"""The paths of resources as a tree that grows with the first resources; what is of interest is counted at its leaves.

A walk costs a dictionary look-up for each element. At most 8,000 elements are told apart; what goes beyond is counted
by kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from tasks.release_report.dates import precision_of
from tasks.release_report.kinds import CODE_TEXT, DISPLAY, MAYBE_TEXT, TEXT, TYPES, is_persons, kind_of
from tasks.release_report.measured import IdentifyingPath
from tasks.release_report.numbers import Tally
from tasks.shared.fhir.persons import Kind

MOST_PATHS: Final = 8_000
MOST_TEXTS: Final = 500
"""URLs of extensions, and systems of identifiers at a path."""

OTHERS: Final = "…"
"""The name of what is beyond a limit, or has no name that can be shown."""

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
    """Where the pass is: line, patient (hashed; ``None`` for nobody), and the run, which changes with each of them."""

    __slots__ = ("k", "line", "patient", "run", "runs")

    def __init__(self, k: int) -> None:
        self.k = k
        self.line = self.run = self.runs = 0
        self.patient: int | None = None

    def begin(self, patient: int | None) -> None:
        """Begin a run of data of a patient."""
        self.run += 1
        self.runs += patient is not None
        self.patient = patient


class Sightings:
    """Lines and runs of patients with something, and the first ``k`` of these patients."""

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

    def tally(self, *, exact: bool, k: int) -> Tally:
        """Return the counts. ``exact``: each patient of the delivery has one run."""
        few = len(self.few)
        return Tally(self.runs if exact else few, exact or few < k, self.lines, self.nobody)


class Found:
    """What was found at a path of a kind."""

    __slots__ = ("kind", "path", "seen", "systems", "urls")

    def __init__(self, path: str, kind: str) -> None:
        self.path = path
        self.kind = kind
        self.seen = Sightings()
        self.systems: dict[str, Sightings] = {}
        self.urls: dict[str, Sightings] = {}

    def result(self, *, exact: bool, k: int) -> IdentifyingPath:
        """Return it without the patients."""
        texts = [
            {text: seen.tally(exact=exact, k=k) for text, seen in some.items()} for some in (self.urls, self.systems)
        ]
        kind = TEXT if self.kind == MAYBE_TEXT else self.kind
        return IdentifyingPath(self.path, kind, self.seen.tally(exact=exact, k=k), *texts)


class Node:
    """An element: its path and names from the innermost resource on, and what is below it by name.

    ``split`` names the member by which the objects here are told apart. ``kind`` is blank where a leaf is of no
    interest.
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
        self.types: dict[str, Node] = {}
        self.found: dict[tuple[str, str], Found] = {}
        self.extensions: dict[str, Sightings] = {}
        self.overfull = False
        self._at = at
        self._nodes = 0

    def of_type(self, name: str) -> Node:
        """Return the node of a type of resource."""
        name = name if name in TYPES else OTHERS
        node = self.types.get(name)
        if node is None:
            node = self.types[name] = Node(name, name)
            node.seen = Sightings()
        return node

    def walk(self, members: Mapping[str, Any], node: Node) -> None:
        """Count what is of interest in an object."""
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
                self.walk(value, self._split(inner, value) if inner.split else inner)
            elif of is list:
                self._walk_list(value, inner, members)
            elif inner.kind and inner.kind not in _TEXTS and value is not None:
                self._see(inner, str(value), members)

    def _walk_list(self, items: list[Any], node: Node, members: Mapping[str, Any]) -> None:
        for item in items:
            of = type(item)
            if of is dict:
                self.walk(item, self._split(node, item) if node.split else node)
            elif of is list:
                self._walk_list(item, node, members)
            elif of is str and node.kind:
                self._see(node, item, members)

    def _child(self, node: Node, key: str) -> Node:
        shown = key if _NAME.fullmatch(key) else OTHERS
        names = (*node.names, key.removeprefix("_"))
        child = Node(f"{node.path}.{shown}", node.resource, names, node.url)
        child.split = _SPLIT.get(key, "")
        child.kind = kind_of(node.resource, names, node.url)
        return self._kept(node, key, child)

    def _split(self, node: Node, members: Mapping[str, Any]) -> Node:
        """Return the node of an object by its type or URL."""
        text = members.get(node.split)
        if not isinstance(text, str):
            return node
        inner = node.below.get(f"({text})")
        if inner is None:
            inner = self._of_url(node, text) if node.split == "url" else self._of_resource(node, text)
        if inner.seen is not None:
            inner.seen.see(self._at)
        return inner

    def _of_resource(self, node: Node, name: str) -> Node:
        kind = name if name in TYPES else OTHERS
        return self._kept(node, f"({name})", Node(f"{node.path}.{kind}", kind))

    def _of_url(self, node: Node, url: str) -> Node:
        whole = url if ":" in url or not node.url else f"{node.url}/{url}"
        inner = Node(node.path, node.resource, node.names, whole)
        if ":" in url:
            inner.seen = self._text(self.extensions, url)
        return self._kept(node, f"({url})", inner)

    def _kept(self, node: Node, key: str, child: Node) -> Node:
        """Keep a node while there is room; beyond, what it finds is counted by kind."""
        if self._nodes < MOST_PATHS:
            self._nodes += 1
            node.below[key] = child
        else:
            self.overfull = True
            child.path = OTHERS
        return child

    def _text(self, texts: dict[str, Sightings], text: str) -> Sightings:
        if text not in texts and len(texts) >= MOST_TEXTS:
            self.overfull = True
            text = OTHERS
        return texts.setdefault(text, Sightings())

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
            found = node.found = self.found.setdefault((node.path, kind), Found(node.path, kind))
        found.seen.see(self._at)
        if node.url:
            self._text(found.urls, node.url).see(self._at)
        if kind == Kind.IDENTIFIER:
            system = members.get("system")
            self._text(found.systems, system if isinstance(system, str) else "").see(self._at)
