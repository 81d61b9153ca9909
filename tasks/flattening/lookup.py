"""The lookup file: for every profile a table that says which columns an element becomes (document 3 §5).

A JSON list of tables ``{url, resourceType, elements}``; ``elements`` maps an element id to ``{viewDefinition,
children?, parent?}``. It is read at start, before a job exists, and everything that is wrong with it is reported at
once. Its models are in ``lookup_model.py``. An element belongs below the one whose ``children`` name it; where none
does, its own ``parent`` counts, so that a context is not lost.

Errors (``InputError``): ``lookup-unreadable``, ``lookup-not-json``, ``lookup-duplicate-key``,
``lookup-schema-violation``, ``lookup-duplicate-table``, ``lookup-multiple-parents``, ``lookup-child-cycle``.
Warnings: ``unresolved-child``, ``parent-mismatch``, ``parent-not-prefix``, ``column-name``,
``bare-choice``, ``code-of-concept``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from config.fields import nearest
from tasks.flattening.lookup_model import SCHEMA_REFERENCE, TOO_DEEP, LookupTable, known_keys, oddities
from tasks.shared.errors import InputError, SluiceError
from tasks.shared.files.named_file import JsonFile, strict_json

DEEPEST: Final = 16
"""Elements above one another. A FHIR element id has far fewer parts; keeps a view from nesting without end."""

Relations = Mapping[str, tuple[Sequence[str], str | None]]
"""What each element of a table says: its children, and its parent."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A contradiction about the place of an element; ``reference`` is the word of document 3 §5."""

    element: str
    reference: str
    message: str


class Hierarchy:
    """The elements of one table, each at its place: ``parents`` and ``children`` agree when there is no error."""

    def __init__(self, written: Relations) -> None:
        self.errors: list[Disagreement] = []
        self.warnings: list[Disagreement] = []
        self.parents: dict[str, str] = {}
        self.children: dict[str, list[str]] = {element: [] for element in written}
        self._place(written)
        for cycle in find_cycles(self.children):
            way = " → ".join((*cycle, cycle[0]))
            self.errors.append(Disagreement(cycle[0], "lookup-child-cycle", f"is below itself: {way}"))
        if not self.errors:
            self._measure()

    def above(self, element: str) -> Iterator[str]:
        """Yield the elements above one, the nearest first."""
        while (parent := self.parents.get(element)) is not None:
            yield parent
            element = parent

    def _place(self, written: Relations) -> None:
        listed: dict[str, list[str]] = {}
        for element, (children, _) in written.items():
            for child in children:
                if child in written:
                    self.children[element].append(child)
                    listed.setdefault(child, []).append(element)
                else:
                    self._warn(element, "unresolved-child", f"the child {child} has no entry in this table")
        for element, (_, parent) in written.items():
            parents = listed.get(element, [])
            if len(parents) > 1:
                self.errors.append(
                    Disagreement(element, "lookup-multiple-parents", f"is listed as a child by {', '.join(parents)}")
                )
            self._compare(element, parent, parents)

    def _compare(self, element: str, written: str | None, listed: Sequence[str]) -> None:
        """Settle an element's parent, and warn where the two ends or the ids disagree."""
        parent = listed[0] if listed else None
        if written is not None and written not in listed:
            if parent is not None:
                message = f"its parent is {written}, but {parent} lists it as a child; the list counts"
            elif written in self.children:
                message = f"its parent {written} does not list it as a child; it is taken as one"
                parent = written
                self.children[written].append(element)
            else:
                message = f"its parent {written} has no entry in this table; it is taken as having none"
            self._warn(element, "parent-mismatch", message)
        if parent is None:
            return
        self.parents[element] = parent
        if not is_prefix(parent, element):
            self._warn(element, "parent-not-prefix", f"its id does not continue the id of its parent {parent}")

    def _measure(self) -> None:
        for element in self.children:
            if sum(1 for _ in zip(self.above(element), range(DEEPEST + 1), strict=False)) > DEEPEST:
                message = f"has more than {DEEPEST} elements above it"
                self.errors.append(Disagreement(element, "lookup-schema-violation", message))

    def _warn(self, element: str, reference: str, message: str) -> None:
        self.warnings.append(Disagreement(element, reference, message))


def is_prefix(parent: str, child: str) -> bool:
    """Return whether an element id continues another one at the border of a part or a slice."""
    return child.startswith(parent) and child[len(parent) : len(parent) + 1] in {".", ":", "/"}


def find_cycles(children: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Yield cycles from parent to child, each from its first element by name, until each cycle shares an element with
    one of them.
    """
    left = {element: list(below) for element, below in children.items()}
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            cycle = error.args[1][:0:-1]  # told from child to parent, its first element twice
        else:
            return
        start = cycle.index(min(cycle))
        yield [*cycle[start:], *cycle[:start]]
        for element in cycle:
            left[element] = []


NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
"""What SQL on FHIR takes as the name of a view or a column."""

_FILE = JsonFile(
    "lookup-unreadable", "lookup-not-json", "the lookup file", "services.flattening.lookup_path names the lookup table"
)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

_HINTS: Final = {
    "lookup-duplicate-key": "keep one of them",
    "lookup-duplicate-table": "keep one table for each profile",
    "lookup-multiple-parents": "an element belongs below one element: name it in one list of children",
    "lookup-child-cycle": "take one of these elements out of the children of the one before it",
}
_MESSAGES: Final = {
    "model_type": "must be an object",
    "dict_type": "must be an object: element id → element",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "string_type": "must be text that is not empty",
    "predicate_failed": "must be text that is not empty",
    "bool_type": "must be true or false",
    "recursion_loop": TOO_DEEP,
    "recursion_depth_exceeded": TOO_DEEP,
}

_Place = tuple[int | str, ...]
"""Keys and positions below a table."""


Lookup = Mapping[str, LookupTable]
"""The tables of a lookup file by canonical URL. ``children`` and ``parent`` of their elements agree with each other; no
element is below itself."""


class _Repeating(dict[str, Any]):
    """A JSON object in whose text a key stands more than once; the last value counts."""

    repeated: tuple[str, ...] = ()


def read_lookup(path: Path) -> tuple[Lookup | None, list[SluiceError], list[str]]:
    """Return the lookup file, or ``None`` if it has errors, with its errors and its warnings.

    Raises nothing for what may stand in the file, nor when it cannot be read: that is a finding as well.
    """
    try:
        document = _FILE.parse(_FILE.read(path), path, _parse)
    except InputError as error:
        return None, [error], []
    if not isinstance(document, list):
        found = "an object" if isinstance(document, dict) else "a single value"
        message = f"a lookup file is a JSON list of tables, this is {found}"
        return None, [InputError(SCHEMA_REFERENCE, message, context=str(path))], []
    readers = [_TableReader(entry, number, path) for number, entry in enumerate(document)]
    first: dict[str, _TableReader] = {}
    for reader in readers:
        if reader.url is not None and first.setdefault(reader.url, reader) is not reader:
            message = f"there is a table with this url already, at {first[reader.url].where}"
            reader.add(("url",), message, reference="lookup-duplicate-table")
    findings: list[SluiceError] = [finding for reader in readers for finding in reader.findings]
    warnings = [warning for reader in readers for warning in reader.warnings()]
    if findings:
        return None, findings, warnings
    return {table.url: table for reader in readers if (table := reader.settled()) is not None}, [], warnings


def load_lookup(path: Path) -> tuple[Lookup, list[str]]:
    """Return the lookup file and its warnings. Raises ``InputError`` with the first error."""
    lookup, findings, warnings = read_lookup(path)
    for finding in findings:
        raise finding
    assert lookup is not None  # noqa: S101 - for the type checker
    return lookup, warnings


class _TableReader:
    """Reads one table, the ``number``-th of the file at ``path``. ``findings`` are what is wrong with it."""

    def __init__(self, entry: Any, number: int, path: Path) -> None:
        self.where = f"[{number}]"
        self.findings: list[InputError] = []
        self.url = url if isinstance(entry, dict) and isinstance(url := entry.get("url"), str) and url.strip() else None
        self._path = path
        self._table: LookupTable | None = None
        for place, key in _repeated(entry, ()):
            self.add((*place, key), f"the key {key!r} is repeated here", reference="lookup-duplicate-key")
        try:
            self._table = LookupTable.model_validate(entry)
        except ValidationError as error:
            for place, message, hint in _translated(error):
                self.add(place, message, hint)
        self._hierarchy = Hierarchy(_relations(entry))
        for one in self._hierarchy.errors:
            self.add(("elements", one.element), one.message, reference=one.reference)

    def add(self, place: _Place, message: str, hint: str | None = None, *, reference: str = SCHEMA_REFERENCE) -> None:
        """Note what is wrong at ``place``; the message names the table and the element that it is in."""
        owner = f"table {self.url}: " if self.url is not None else ""
        if place[:1] == ("elements",) and len(place) > 1:
            owner += f"element {place[1]}: "
        context = f"{self._path} {self.where}{''.join(map(_step, place))}"
        self.findings.append(
            InputError(reference, f"{owner}{message}", context=context, hint=hint or _HINTS.get(reference))
        )

    def warnings(self) -> Iterator[str]:
        """Yield what is odd about the table; of its columns and paths only where it has the right form."""
        found = list(self._hierarchy.warnings)
        if self._table is not None:
            found += _unusual_names(self._table)
            found += _refused_paths(self._table, self._hierarchy) if not self._hierarchy.errors else ()
        for one in found:
            yield f"{one.reference}: lookup table {self.url}, element {one.element}: {one.message}"

    def settled(self) -> LookupTable | None:
        """Return the table with every element at its place; ``None`` where it has not the right form."""
        if self._table is None:
            return None
        children, parents = self._hierarchy.children, self._hierarchy.parents
        elements = {
            name: element.model_copy(update={"children": tuple(children[name]), "parent": parents.get(name)})
            for name, element in self._table.elements.items()
        }
        return self._table.model_copy(update={"elements": elements})


def _parse(content: bytes) -> Any:
    document = strict_json(content, _object)
    if _SURROGATE.search(content):
        json.dumps(document, ensure_ascii=False).encode()
    return document


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) == len(pairs):
        return plain
    repeating = _Repeating(plain)
    repeating.repeated = tuple(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
    return repeating


def _repeated(part: Any, place: _Place) -> Iterator[tuple[_Place, str]]:
    """Yield the keys that stand twice, each with the place of its object: the text under the first would be lost."""
    if isinstance(part, _Repeating):
        yield from ((place, key) for key in part.repeated)
    below = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in below:
        yield from _repeated(value, (*place, key))


def _step(key: int | str) -> str:
    """Return the part of a JSON path for a key: ``[0]``, ``.elements``, ``["Patient.name"]``."""
    plain = isinstance(key, str) and _PLAIN_KEY.match(key)
    return f".{key}" if plain else f"[{json.dumps(key, ensure_ascii=False)}]"


def _translated(error: ValidationError) -> Iterator[tuple[_Place, str, str | None]]:
    """pydantic's errors in our words, without any value: place, message, hint."""
    for detail in error.errors(include_url=False):
        place, kind, context = detail["loc"], detail["type"], detail.get("ctx", {})
        hint = None
        if "message" in context:
            message, hint = context["message"], context["hint"]
            place = place[:-1] if context.get("above") else place
        elif kind == "extra_forbidden":
            known = known_keys(place[:-1])
            near = nearest(str(place[-1]), known)
            message = f"the key {place[-1]!r} is unknown"
            hint = f"did you mean {near}?" if near else f"known keys: {', '.join(known)}"
        elif place[-1:] == ("[key]",):
            place, message = place[:-1], "an element id must not be empty"
        elif kind == "missing" or (detail["input"] is None and place and _required(place)):
            message = f"the key {place[-1]} is missing"
        elif place[-1:] == ("description",):
            message = "must be text"
        else:
            message = _MESSAGES.get(kind, "has a value of the wrong kind")
        yield place, message, hint


def _required(place: _Place) -> bool:
    """Return whether ``place`` is a key, and not an entry of a list or of ``elements``."""
    return isinstance(place[-1], str) and place[:-1] != ("elements",)


def _relations(entry: Any) -> Relations:
    """Read the relations between the elements of a table, as far as its structure permits."""
    elements = entry.get("elements") if isinstance(entry, dict) else None
    found = {}
    for name, element in elements.items() if isinstance(elements, dict) else ():
        written = element if isinstance(element, dict) else {}
        children, parent = written.get("children"), written.get("parent")
        names = dict.fromkeys(filter(_is_text, children)) if isinstance(children, list) else ()
        found[name] = (tuple(names), parent if _is_text(parent) else None)
    return found


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _unusual_names(table: LookupTable) -> Iterator[Disagreement]:
    for element_id, element in table.elements.items():
        for column in element.definition.walk():
            if not NAME.match(column.name):
                message = (
                    f"the column {column.name!r} is not named with letters, digits and underscores, a letter first; "
                    "a flattening service may refuse it"
                )
                yield Disagreement(element_id, "column-name", message)


def _refused_paths(table: LookupTable, hierarchy: Hierarchy) -> Iterator[Disagreement]:
    """Paths that real runners refuse; those of an element begin where the elements above it iterate."""
    for element_id, element in table.elements.items():
        above = [table.elements[name].definition.iterated for name in hierarchy.above(element_id)]
        context = ".".join(filter(None, reversed(above)))
        for reference, message in oddities(table.resource_type, element.definition, context):
            yield Disagreement(element_id, reference, message)
