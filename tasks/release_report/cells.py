"""What the measuring pass counts in: cells, and the trie of paths whose nodes are cells (document 5, R1).

A cell counts patients, each once. Where the data of a patient come together, the number of the run of data in which it
was seen last suffices; where they do not, a cell holds a set: a few serial numbers, or a bit a patient.

Bounds: 8,000 paths made of names that R4 does not know or of extensions, those behind them share ``…`` (counted as
``paths``); 1,000 codes an element and 30,000 in all (``codes``); 1,000 different values where values are counted
(``values``); 100 MB of bits (from then on no new code or value is counted apart). What falls out is in the element's or
the list's ``other`` cell, and in ``Bounds.others``.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from tasks.pseudonymizer.residual_identifiers import PERSONS
from tasks.release_report import kinds

PLAIN, TEXT, DATE, REFERENCE, VALUES, SEARCH = range(6)
"""What is to be done with a value at a leaf."""

_FEW: Final = 16
_STEP: Final = 64
_MOST_BITS: Final = 100_000_000
_MOST_PATHS: Final = 8_000
_DEEPEST: Final = 40
_MOST_VALUES: Final = 1_000
_MOST_CODES: Final = 1_000
_ALL_CODES: Final = 30_000
_LONGEST: Final = 300
"""Characters of a name or URL of the data in a path."""
_TRACKED: Final = 4_000_000
"""Patients times paths of which values are compared to find those that are one a patient (8 bytes each)."""
_SHARED: Final = 512


class Bounds:
    """What is held, over all cells, and what was refused because of it."""

    def __init__(self) -> None:
        self.bits = 0
        self.paths = 0
        self.codes = 0
        self.tracked = 0
        self.others: Counter[str] = Counter()

    @property
    def crowded(self) -> bool:
        """Whether there is no room for cells of another code or value."""
        return self.bits > _MOST_BITS


class Cell:
    """Patients who have something, and resources of nobody.

    ``run`` is the last run of data in which it was seen, ``up`` the cell in which it is, ``also`` others to be touched
    with it.
    """

    __slots__ = ("also", "bits", "few", "n", "nobody", "run", "up")

    def __init__(self, up: Cell | None = None) -> None:
        self.run = 0
        self.n = 0
        self.nobody = 0
        self.few: list[int] | None = None
        self.bits: bytearray | None = None
        self.up = up
        self.also: tuple[Cell, ...] = ()

    def add(self, patient: int, bounds: Bounds) -> None:
        """Count a patient who may be counted already."""
        bits = self.bits
        if bits is None:
            few = self.few
            if few is None:
                self.few = [patient]
                return
            if patient in few:
                return
            if len(few) < _FEW:
                few.append(patient)
                return
            bits = self.bits = bytearray()
            self.few = None
            for one in few:
                self._set(bits, one, bounds)
        self._set(bits, patient, bounds)

    @staticmethod
    def _set(bits: bytearray, patient: int, bounds: Bounds) -> None:
        place = patient >> 3
        if place >= len(bits):
            more = place + _STEP + len(bits) // 8 - len(bits)
            bits.extend(bytes(more))
            bounds.bits += more
        bits[place] |= 1 << (patient & 7)

    def merge(self, other: Cell, bounds: Bounds) -> None:
        """Count the patients and the resources of another cell, too."""
        self.nobody += other.nobody
        for one in other.few or ():
            self.add(one, bounds)
        if other.bits is not None:
            if self.bits is None:
                few, self.few, self.bits = self.few, None, bytearray()
                for one in few or ():
                    self._set(self.bits, one, bounds)
            mine, theirs = int.from_bytes(self.bits, "little"), int.from_bytes(other.bits, "little")
            size = max(len(self.bits), len(other.bits))
            bounds.bits += size - len(self.bits)
            self.bits = bytearray((mine | theirs).to_bytes(size, "little"))

    @property
    def patients(self) -> int:
        """How many."""
        if self.bits is not None:
            return int.from_bytes(self.bits, "little").bit_count()
        return self.n if self.few is None else len(self.few)


class Values:
    """Values with a cell each; ``other`` is for those that were too many."""

    def __init__(self, bounds: Bounds) -> None:
        self.cells: dict[str, Cell] = {}
        self.other = Cell()
        self._bounds = bounds

    def of(self, value: str) -> Cell:
        """The cell of a value."""
        cell = self.cells.get(value)
        if cell is None:
            if len(self.cells) >= _MOST_VALUES or self._bounds.crowded or len(value) > _LONGEST:
                self._bounds.others["values"] += 1
                return self.other
            cell = self.cells[value] = Cell()
        return cell

    def counts(self, head: str = "") -> dict[str, int]:
        """Patients by value."""
        return {head + value: cell.patients for value, cell in self.cells.items() if cell.patients}


class Seen:
    """A coding or a quantity as it is spelled: the cells to touch, and how many members it has."""

    __slots__ = ("cells", "run", "size")

    def __init__(self, cells: tuple[Cell, ...], size: int) -> None:
        self.run = 0
        self.cells = cells
        self.size = size


class CodeTable:
    """The codes of one element."""

    def __init__(self, path: str, bounds: Bounds) -> None:
        self.path = path
        self.seen: dict[tuple[Any, Any, Any], Seen] = {}
        self.codes: dict[str, Cell] = {}
        self.displays: dict[str, dict[str, Cell]] = {}
        self.systems = Values(bounds)
        self.text_only = Cell()
        self.other = Cell()
        self._bounds = bounds

    def add(self, system: Any, code: Any, display: Any, leaves: tuple[Cell, ...]) -> Seen:
        """A coding in a spelling that was not seen before."""
        bounds = self._bounds
        name = f"{system if isinstance(system, str) else ''}|{code if isinstance(code, str) else ''}"
        cells: list[Cell] = list(leaves)
        if isinstance(system, str):
            cells.append(self.systems.of(system))
        cell = self.codes.get(name)
        full = len(self.seen) >= 2 * _MOST_CODES
        if cell is None and isinstance(code, str):
            full = full or len(self.codes) >= _MOST_CODES or bounds.codes >= _ALL_CODES or bounds.crowded
            if not full and len(name) <= _LONGEST:
                bounds.codes += 1
                cell = self.codes[name] = Cell()
        if cell is not None:
            cells.append(cell)
            if isinstance(display, str) and not full and len(display) <= _LONGEST:
                cells.append(self.displays.setdefault(name, {}).setdefault(display, Cell()))
        elif isinstance(code, str):
            bounds.others["codes"] += 1
            cells.append(self.other)
        seen = Seen(tuple(cells), len(leaves))
        if not full:
            self.seen[system, code, display] = seen
        return seen


class OneEach:
    """Whether every patient has one value of her own, and nobody shares one (7c): a hash a patient."""

    __slots__ = ("_bounds", "_first", "hashes")

    def __init__(self, bounds: Bounds) -> None:
        self.hashes = array("q")
        self._first: set[int] = set()
        self._bounds = bounds

    def add(self, patient: int, value: int) -> bool:
        """Take in a value; whether it may still be so."""
        hashes = self.hashes
        if patient >= len(hashes):
            more = patient + 1 - len(hashes) + len(hashes) // 4
            if self._bounds.tracked + more > _TRACKED:
                self._bounds.others["one_each"] += 1
                return False
            self._bounds.tracked += more
            hashes.frombytes(bytes(8 * more))
        old = hashes[patient]
        if old:
            return old == value
        first = self._first
        if len(first) < _SHARED:
            if value in first:
                return False
            first.add(value)
        hashes[patient] = value
        return True

    def drop(self) -> None:
        """Give the room back."""
        self._bounds.tracked -= len(self.hashes)

    def holds(self, patients: int) -> bool:
        """Whether so many patients have one, and no two share it; in parts, so that memory is that of a sixteenth."""
        if len(self.hashes) - self.hashes.count(0) != patients:
            return False  # not all of them texts
        for part in range(16):
            some = [one for one in self.hashes if one and one & 15 == part]
            if len(set(some)) < len(some):
                return False
        return True


class Node(Cell):
    """A place in the trie of paths: a leaf, an element with others in it, or both (a text with extensions).

    ``above`` are the types from the resource to here; ``enter`` takes in an object that stands here.
    """

    __slots__ = (
        "above", "act", "before", "clinical", "codes", "collects", "dates", "do", "enter", "future", "kids", "kind",
        "leaf", "looked_up", "measured", "measures", "numbers", "one", "path", "person", "place", "precise",
        "precision", "resources", "slots", "spelled", "type", "url", "values",
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
        self.one: OneEach | None = None
        self.values: Values | None = None
        self.codes: CodeTable | None = None
        self.dates: dict[str, Cell] | None = None
        self.precision: dict[str, Cell] = {}
        self.precise: dict[int, Cell] = {}
        self.future: Cell | None = None
        self.before: Cell | None = None
        self.measured = False
        self.slots: dict[str, Slot] = {}
        self.spelled: dict[Any, Seen] = {}
        self.measures: list[tuple[str, Node]] | None = None
        self.numbers: Any = None


class Effect(Cell):
    """What an element of a resource does that is spelled so: the cells to touch, what is to be looked up, and where it
    refers to."""

    __slots__ = ("cells", "targets", "texts")

    def __init__(
        self,
        cells: tuple[Cell, ...],
        texts: tuple[tuple[Node, int, str], ...],
        targets: tuple[str, ...],
    ) -> None:
        super().__init__()
        self.cells = cells
        self.texts = texts
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
        self.profiles = Values(bounds)

    def root(self, kind: str) -> Node:
        """The node of a type of resources."""
        node = self.roots.get(kind)
        if node is None:
            node = self._new(kind if len(self.roots) < _MOST_VALUES else "…", kind, (kind,), None)
            node.enter = self.enter["object"]
            self.roots[kind] = node
        return node

    def apart(self, kind: str) -> Node:
        """The node of something that is no resource of its own: what a Bundle has around its resources."""
        node = self._new(kind, kind, (kind,), None)
        node.enter = self.enter["object"]
        return node

    def _new(self, path: str, kind: str, above: tuple[str, ...], up: Cell | None) -> Node:
        node = Node(path, kind, above, up)
        node.place = len(self.nodes)
        self.nodes.append(node)
        return node

    def _named(self, name: str, node: Node, *, known: bool) -> str:
        """The name for the path: one that is the data's own may be cut, and shares when there are too many."""
        if known:
            return name
        if self.bounds.paths >= _MOST_PATHS or len(node.above) > _DEEPEST:
            self.bounds.others["paths"] += 1
            return "…"
        return name[:_LONGEST]

    def column(self, table: Node, name: str, kind: str, *, dates: bool, looked_up: bool) -> Node:
        """The node of a table's column, of which nobody knows the type."""
        node = self._new(f"{table.path}.{name[:_LONGEST]}", "", (*table.above, ""), table)
        node.enter = self.enter["object"]
        node.kind, node.looked_up = kind, looked_up
        if dates:
            node.act, node.dates, node.clinical = DATE, {}, not looked_up
            node.future, node.before = Cell(), Cell()
        elif looked_up:
            node.act, node.one = TEXT, OneEach(self.bounds)
        node.do = self.do.get(node.act)
        return node

    def extension(self, holder: Node, url: Any) -> Node:
        """The node of an extension by its URL."""
        url = url if isinstance(url, str) else ""
        name = self._named(url, holder, known=False)
        node = holder.kids.get(name)
        if node is None:
            self.bounds.paths += 1
            node = self._new(f"{holder.path}({name})", "Extension", (*holder.above, "Extension"), holder.up)
            node.url = url if holder.url == "" else f"{holder.url} {url}"
            node.enter = self.enter["object"]
            if "Extension" not in holder.above:
                node.also = (self.urls.of(name),)
            holder.kids[name] = node
        return node

    def inside(self, holder: Node, kind: Any) -> Node:
        """The node of a resource in another one, by its type."""
        name = self._named(kind if isinstance(kind, str) else "", holder, known=False)
        node = holder.kids.get(f".{name}")
        if node is None:
            self.bounds.paths += 1
            node = self._new(f"{holder.path}.{name}", name, (*holder.above, name), holder)
            node.enter = self.enter["object"]
            holder.kids[f".{name}"] = node
        return node

    def grow(self, node: Node, key: str, value: Any) -> Node:
        """The node below another one for a key that it has for the first time."""
        while isinstance(value, list):
            value = next((one for one in value if one is not None), None)
        is_object = isinstance(value, dict)
        if key[:1] == "_" and is_object:
            child = node.kids.get(key[1:]) or self.grow(node, key[1:], "")
            node.kids[key] = child
            return child
        own, choice = kinds.element(node.type, key, is_object=is_object)
        known = bool(own) or kinds.knows(node.type, key) or key in ("id", "system", "value", "url", "extension")
        name = self._named(key, node, known=known and len(node.above) <= _DEEPEST)
        if name != key and name in node.kids:
            return node.kids[name]
        if key in ("extension", "modifierExtension"):
            child = self._new(f"{node.path}.{key}", "", node.above, node)
            child.url = node.url
            child.enter = self.enter["extension"]
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
            child.codes = table or CodeTable(child.path, self.bounds)
        elif own == "CodeableConcept":
            child.codes = CodeTable(child.path, self.bounds)
        elif own in kinds.QUANTITIES and not _is_beside(node.above):
            if len(node.above) > 1:
                node.measures = [*(node.measures or []), (key, child)]
            else:
                child.measured = True
        self._act(child, key, node)
        node.kids[name] = child
        return child

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
        if meta and key == "lastUpdated":
            child.act = PLAIN  # a date of the server that had it
        elif own in kinds.DATES:
            child.act, child.dates = DATE, {}
            child.looked_up = person and not meta
            child.clinical = not person and not meta
            child.future, child.before = Cell(), Cell()
        elif around == "Reference" and key == "reference":
            child.act = REFERENCE
        elif around == "Bundle_Request" and key == "ifNoneExist":
            child.act = SEARCH
        elif around == "Identifier" and key == "system":
            child.act, child.values = VALUES, self.systems
        elif around == "Meta" and key == "profile":
            child.act, child.values = VALUES, self.profiles
        elif (around == "Attachment" and key == "contentType") or (key == "status" and len(above) == 1):
            child.act, child.values = VALUES, Values(self.bounds)
        elif (
            ((own == "code" or key == "id") and child.kind == "")
            or around == "Coding"
            # Where resources are: their ids are looked at.
            or (around in ("Bundle_Entry", "Bundle_Request") and key in ("fullUrl", "url"))
            or (around in kinds.QUANTITIES and key in ("unit", "code", "system"))
        ):
            child.act = PLAIN
        else:
            child.act = TEXT
            child.looked_up = True
            child.one = OneEach(self.bounds)
        child.do = self.do.get(child.act)
        if child.kind in ("display", "concept-text"):
            child.collects = child.kind == "display" and len(above) > 1 and node.path.rpartition(".")[2] in _THEIRS
        else:
            child.collects = bool(child.kind) or (person and not meta)


def _is_beside(above: tuple[str, ...]) -> bool:
    """Whether a quantity below these is none that was measured: a limit, or something that an extension says."""
    return "Extension" in above or any(one.endswith("_ReferenceRange") for one in above)


_THEIRS: Final = frozenset({"subject", "patient", "beneficiary"})
