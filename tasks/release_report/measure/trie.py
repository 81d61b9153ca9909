"""The trie of paths, whose nodes are cells: what stands at each, and what is to be done with it.

Bounds: 8,000 paths made of names that R4 does not know or of extensions, those behind them share ``…`` (counted as
``paths``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tasks.release_report.measure import kinds
from tasks.release_report.measure.cells import LONGEST, MOST_VALUES, Bounds, Cell, Values
from tasks.release_report.measure.codes import CodeTable
from tasks.shared.fhir.r4 import PERSONS, PRACTITIONERS

PLAIN, TEXT, DATE, REFERENCE, VALUES, SEARCH, CODED, ID, NUMBER, STRAY = range(10)
"""What is to be done with a value at a leaf."""

OUTSIDE, TYPE, PRIMITIVE = range(3)
"""What is known of what is inside: nothing, the elements of a type, or that there are none but extensions."""

_MOST_PATHS: Final = 8_000
_DEEPEST: Final = 40
_UNNAMED: Final = "…"
"""The name of all paths that are too many or too deep."""


class Node(Cell):
    """A place in the trie of paths: a leaf, an element with others in it, or both (a text with extensions).

    ``above`` are the types from the resource to here; ``enter`` takes in an object that stands here. ``defined``
    says what R4 knows of what is inside; ``undefined`` counts texts and objects that R4 does not define here.

    ``cut`` says that identifiers are looked for in parts of the values, and ``loose`` that a short number here may be
    one by chance. ``named`` is whose name a reference shows (``kinds.refers_to``). ``twin`` stands for the node where a
    value is taken in, or looked up, in a second way. Values of ``alone`` have one owner, however many patients have
    them; ``doctors`` says that identifiers inside are so.
    """

    __slots__ = (
        "above", "act", "alone", "clinical", "codes", "collects", "cut", "dates", "defined", "do",
        "doctors", "enter", "kids", "kind", "leaf", "looked_up", "loose", "named",
        "path", "person", "place", "precise", "precision", "resources", "slots", "spelled",
        "twin", "type", "undefined", "url", "values",
    )  # fmt: skip

    enter: Callable[[Node, dict[str, Any]], None]

    def __init__(self, path: str, kind: str, above: tuple[str, ...], up: Cell | None) -> None:
        super().__init__(up)
        self.path = path
        self.type = kind
        self.above = above
        self.kids: dict[str, Node] = {}
        self.place = -1
        self.leaf = False
        self.resources = 0
        self.act = PLAIN
        self.do: Callable[[Node, str], None] | None = None
        self.kind = ""
        self.url = ""
        self.looked_up = False
        self.collects = False
        self.clinical = False
        self.person = False
        self.values: Values | None = None
        self.codes: CodeTable | None = None
        self.dates: dict[str, Cell] | None = None
        self.precision: dict[str, Cell] = {}
        self.precise: dict[int, Cell] = {}
        self.slots: dict[str, Slot] = {}
        self.spelled: dict[Any, Any] = {}
        """Quantities by their unit (``Seen``), or days by how they are written."""
        self.defined = OUTSIDE
        self.undefined: Cell | None = None
        self.named = ""
        self.twin: Node | None = None
        self.doctors = False
        self.alone = False
        self.cut = False
        self.loose = False

    def below(self, name: str) -> Node:
        """Return the node of a member that was met here; those that are too deep share one."""
        return self.kids.get(name) or self.kids[_UNNAMED]


class Effect(Cell):
    """The effect of an element with this spelling: the cells to touch, the values to look up and search for identifiers
    of ``import/``, and its targets."""

    __slots__ = ("cells", "suspects", "targets", "texts")

    def __init__(
        self,
        cells: tuple[Cell, ...],
        texts: tuple[tuple[Node, int, str], ...],
        suspects: tuple[tuple[int, int], ...],
        targets: tuple[str, ...],
    ) -> None:
        super().__init__()
        self.cells = cells
        self.texts = texts
        self.suspects = suspects
        self.targets = targets


class Slot:
    """An element of a type of resources, and the spellings of it that are known; ``None`` where they rarely repeat.

    ``since`` is how many resources had come when it was first seen.
    """

    __slots__ = ("known", "misses", "node", "since")

    def __init__(self, node: Node, since: int) -> None:
        self.node = node
        self.known: dict[bytes, Effect] | None = {}
        self.since = since
        self.misses = 0


class Trie:
    """All paths. ``enter`` are the functions that take in objects, by what they are, ``do`` those for texts."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.roots: dict[str, Node] = {}
        self.nodes: list[Node] = []
        self.do: dict[int, Callable[[Node, str], None]] = {}
        self.enter: dict[str, Callable[[Node, dict[str, Any]], None]] = {}
        self.systems = Values(bounds)
        self.urls = Values(bounds)

    def root(self, kind: str) -> Node:
        """Return the node of a type of resources."""
        node = self.roots.get(kind)
        if node is None:
            node = self._new(kind if len(self.roots) < MOST_VALUES else _UNNAMED, kind, (kind,), None)
            node.enter = self.enter["object"]
            self._resource(node)
            self.roots[kind] = node
        return node

    def _resource(self, node: Node) -> None:
        node.doctors = node.type in PRACTITIONERS
        if kinds.knows_type(node.type, resource=True):
            node.defined = TYPE
        else:
            node.undefined = Cell()
            node.also = (*node.also, node.undefined)

    def apart(self, kind: str) -> Node:
        """Return the node for the elements of a Bundle around its resources."""
        node = self._new(kind, kind, (kind,), None)
        node.enter = self.enter["object"]
        node.defined = TYPE
        return node

    def _new(self, path: str, kind: str, above: tuple[str, ...], up: Cell | None) -> Node:
        node = Node(path, kind, above, up)
        node.place = len(self.nodes)
        self.nodes.append(node)
        return node

    def _named(self, name: str, node: Node, *, known: bool) -> str:
        """Return the name for the path; a name from the data may be cut, and is shared if there are too many."""
        if known:
            return name
        if self.bounds.paths >= _MOST_PATHS or len(node.above) > _DEEPEST:
            self.bounds.others["paths"] += 1
            return _UNNAMED
        return name[:LONGEST]

    def column(self, table: Node, name: str, kind: str, *, dates: bool, looked_up: bool) -> Node:
        """Return the node of a table's column, whose type is unknown."""
        node = self._new(f"{table.path}.{name[:LONGEST]}", "", (*table.above, ""), table)
        node.enter = self.enter["object"]
        node.kind, node.looked_up = kind, looked_up
        if dates:
            node.act, node.dates, node.clinical = DATE, {}, not looked_up
        elif looked_up:
            node.act, node.cut = TEXT, kind not in kinds.LEFT
        else:
            node.act = CODED
        node.loose = True
        node.do = self.do.get(node.act)
        return node

    def extension(self, holder: Node, url: Any) -> Node:
        """Return the node of an extension by its URL."""
        url = url if isinstance(url, str) else ""
        name = self._named(url, holder, known=False)
        node = holder.kids.get(name)
        if node is None:
            self.bounds.paths += 1
            node = self._new(f"{holder.path}({name})", "Extension", (*holder.above, "Extension"), holder.up)
            node.url = url if holder.url == "" else f"{holder.url} {url}"
            node.enter = self.enter["object"]
            node.defined, node.doctors = TYPE, holder.doctors
            if "Extension" not in holder.above:
                node.also = (self.urls.of(name),)
            holder.kids[name] = node
        return node

    def url(self, holder: Node) -> Node:
        """Return the node for the URLs of all extensions of an element, because a URL with an identifier must not be in
        a path."""
        node = holder.kids.get(_URL)
        if node is None:
            node = holder.kids[_URL] = self._new(f"{holder.path}(…).url", "", (*holder.above, "Extension"), holder.up)
            node.leaf, node.act = True, ID
        return node

    def inside(self, holder: Node, kind: Any) -> Node:
        """Return the node of a contained resource, by its type."""
        name = self._named(kind if isinstance(kind, str) else "", holder, known=False)
        node = holder.kids.get(f".{name}")
        if node is None:
            self.bounds.paths += 1
            node = self._new(f"{holder.path}.{name}", name, (*holder.above, name), holder)
            node.enter = self.enter["object"]
            self._resource(node)
            holder.kids[f".{name}"] = node
        return node

    def grow(self, node: Node, key: str, value: Any) -> Node:
        """Return the node below another one for a new key."""
        while isinstance(value, list):
            value = next((one for one in value if one is not None), None)
        is_object = isinstance(value, dict)
        if key[:1] == "_" and is_object:
            child = node.kids.get(key[1:]) or self.grow(node, key[1:], "")
            node.kids[key] = child
            return child
        own, choice = kinds.element(node.type, key, is_object=is_object)
        known = bool(own) or kinds.is_defined(node.type, key) or key in ("id", "system", "value", "url", "extension")
        name = self._named(key, node, known=known and len(node.above) <= _DEEPEST)
        if name != key and name in node.kids:
            return node.kids[name]
        if key in ("extension", "modifierExtension"):
            child = self._new(f"{node.path}.{key}", "", node.above, node)
            child.url = node.url
            child.enter = self.enter["extension"]
            child.doctors = node.doctors
            self._define(child, node, key)
            node.kids[key] = child
            return child
        self.bounds.paths += not known
        up: Cell = node
        if choice:
            up = node.kids.get(f"{choice}[x]") or self._choice(node, f"{choice}[x]")
        photo = ("photo",) if key == "photo" else ()
        child = self._new(f"{node.path}.{name}", own, (*node.above, *photo, own), up)
        child.url = node.url
        child.enter = self.enter.get(own, self.enter["object"])
        if own == "Coding":
            table = node.codes if node.type == "CodeableConcept" else None
            child.codes = table or CodeTable()
        elif own == "CodeableConcept":
            child.codes = CodeTable()
        elif own == "Reference":
            child.named = kinds.refers_to(node.type, key)
        child.doctors = node.doctors or child.named == "person"
        self._act(child, key, node)
        self._define(child, node, key)
        node.kids[name] = child
        return child

    def _define(self, child: Node, node: Node, key: str) -> None:
        """Find out whether R4 defines an element, and what may be inside."""
        if node.defined == OUTSIDE:
            return
        known = kinds.is_defined(node.type, key) if node.defined == TYPE else key in ("id", "extension")
        objects = child.enter is not self.enter["object"] or kinds.knows_type(child.type)
        if known:
            child.defined = TYPE if objects else PRIMITIVE
        else:
            child.enter = self.enter["undefined"]
        if objects or not known:  # a text has no place here
            child.undefined, child.do = Cell(), self.do.get(STRAY)

    def _choice(self, node: Node, name: str) -> Node:
        child = self._new(f"{node.path}.{name}", "", node.above, node)
        child.enter = self.enter["object"]
        node.kids[name] = child
        return child

    def _act(self, child: Node, key: str, node: Node) -> None:
        """Decide what is to be done with values at a leaf."""
        own, around, above = child.type, node.type, node.above
        person = any(one in PERSONS for one in above)
        meta = "Meta" in above
        child.kind = kinds.kind_of(key, own, above, node.url)
        child.person = person and not meta
        if child.kind == "identifier":
            child.alone = node.doctors
            child.twin = self._twin(child, -1) if not kinds.is_published(above[0]) else None
        if meta and key == "lastUpdated":
            child.act = PLAIN  # a date of the server that had it
        elif own in kinds.DATES:
            child.act, child.dates = DATE, {}
            child.looked_up = person and not meta
            child.clinical = not person and not meta and above[0] != "Provenance"  # of the extraction, for everybody
        elif around == "Reference" and key == "reference":
            child.act = REFERENCE
        elif around == "Bundle_Request" and key == "ifNoneExist":
            child.act = SEARCH
        elif around == "Identifier" and key == "system":
            child.act, child.values = VALUES, self.systems
        elif (key == "id" and child.kind == "") or (
            around in ("Bundle_Entry", "Bundle_Request") and key in ("fullUrl", "url")
        ):
            child.act = ID  # where resources are: their ids are looked at
        elif (
            (own == "code" and child.kind == "")
            or around == "Coding"
            or (around in kinds.QUANTITIES and key in ("unit", "code", "system"))
        ):
            child.act = CODED
        else:
            child.act = NUMBER if child.twin is not None else TEXT
            child.looked_up = True
            child.cut = child.kind not in kinds.LEFT and around != "SampledData"
        child.loose = child.act == CODED or (child.act == TEXT and own in kinds.TEXTS)
        child.do = self.do.get(child.act)
        if child.kind in ("display", "concept-text"):
            child.collects = child.kind == "display" and node.named == "patient"
            child.twin = self._twin(child, child.place) if child.kind == "display" else None
        else:
            child.collects = bool(child.kind) or (person and not meta)

    def _twin(self, child: Node, place: int) -> Node:
        twin = Node(child.path, child.type, (), None)
        twin.place, twin.collects, twin.alone = place, True, child.alone or place >= 0
        return twin


_URL: Final = "(url)"
