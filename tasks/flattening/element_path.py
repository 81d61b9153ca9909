"""The shape of a lookup file: which keys each of its objects has, and what stands under them (document 3 §5).

Everything that is wrong is noted, none of it is the last finding. Null counts as absent, as in a CRTDL.
References: ``lookup-schema-violation``, ``lookup-duplicate-key``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from config.fields import nearest
from tasks.flattening.lookup_document import join, repeated
from tasks.flattening.where_clause import ColumnDefinition, SelectClause
from tasks.shared.errors import InputError

DEEPEST: Final = 16
"""Levels of clauses below an element's own. Far above every real one; keeps a view from nesting without end."""

TABLE: Final = ("url", "resourceType", "elements")
ELEMENT: Final = ("viewDefinition", "children", "parent")
SELECT: Final = ("forEach", "forEachOrNull", "column", "select")
COLUMN: Final = ("name", "path", "type", "collection", "description")

_TYPE = re.compile(r"[A-Z][A-Za-z]*\Z")


@dataclass(frozen=True, slots=True)
class WrittenElement:
    """An element as it is written; what it says about other elements is not checked yet."""

    definition: SelectClause
    children: tuple[str, ...] = ()
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """A table as it is written; ``where`` is its JSON path."""

    where: str
    url: str | None
    resource_type: str | None
    elements: Mapping[str, WrittenElement]


class Shape:
    """Reads the tables of one document; ``findings`` are what is wrong with them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._owner = ""
        self.findings: list[InputError] = []

    def wrong(
        self, where: str, message: str, hint: str | None = None, *, reference: str = "lookup-schema-violation"
    ) -> None:
        """Note what is wrong at a JSON path, in the table and the element that are being read."""
        context = f"{self._path} {where}".rstrip()
        self.findings.append(InputError(reference, f"{self._owner}{message}", context=context, hint=hint))

    def tables(self, document: Any) -> Iterator[WrittenTable]:
        """The tables of a document."""
        if not isinstance(document, list):
            found = "an object" if isinstance(document, dict) else "a single value"
            self.wrong("", f"a lookup file is a JSON list of tables, this is {found}")
            return
        for number, entry in enumerate(document):
            yield self._table(entry, f"[{number}]")
        self._owner = ""

    def _table(self, entry: Any, where: str) -> WrittenTable:
        self._owner = ""
        if not self._object(entry, where, TABLE):
            return WrittenTable(where, None, None, {})
        url = self._text(entry, "url", where, required=True)
        table = self._owner = "" if url is None else f"table {url}: "
        resource_type = self._text(entry, "resourceType", where, required=True)
        if resource_type is not None and not _TYPE.match(resource_type):
            self.wrong(join(where, "resourceType"), "must be the name of a resource type, such as Observation")
        place = join(where, "elements")
        elements: dict[str, WrittenElement] = {}
        if entry.get("elements") is None:
            self.wrong(place, "the key elements is missing")
        elif not isinstance(entry["elements"], dict):
            self.wrong(place, "must be an object: element id → element")
        else:
            self._once(entry["elements"], place)
            for element_id, element in entry["elements"].items():
                self._owner = f"{table}element {element_id}: " if table else f"element {element_id}: "
                elements[element_id] = self._element(element_id, element, join(place, element_id))
        self._owner = table
        return WrittenTable(where, url, resource_type, elements)

    def _element(self, element_id: str, entry: Any, where: str) -> WrittenElement:
        if not element_id.strip():
            self.wrong(where, "an element id must not be empty")
        if not self._object(entry, where, ELEMENT):
            return WrittenElement(SelectClause())
        definition = SelectClause()
        if entry.get("viewDefinition") is None:
            self.wrong(join(where, "viewDefinition"), "the key viewDefinition is missing")
        else:
            definition = self._select(entry["viewDefinition"], join(where, "viewDefinition"), DEEPEST)
        children: dict[str, None] = {}
        for item, place in self._list(entry, "children", where):
            if not isinstance(item, str) or not item.strip():
                self.wrong(place, "must be text that is not empty")
            elif item in children:
                self.wrong(place, f"the child {item} is listed twice")
            else:
                children[item] = None
        return WrittenElement(definition, tuple(children), self._text(entry, "parent", where))

    def _select(self, entry: Any, where: str, levels: int) -> SelectClause:
        if not self._object(entry, where, SELECT):
            return SelectClause()
        for_each = self._text(entry, "forEach", where)
        for_each_or_null = self._text(entry, "forEachOrNull", where)
        if entry.get("forEach") is not None and entry.get("forEachOrNull") is not None:
            self.wrong(where, "has both forEach and forEachOrNull", "keep one of them")
        columns = tuple(
            column
            for item, place in self._list(entry, "column", where)
            if (column := self._column(item, place)) is not None
        )
        if levels == 0 and entry.get("select"):
            self.wrong(join(where, "select"), f"select clauses are nested more than {DEEPEST} levels deep")
            return SelectClause()
        select = tuple(self._select(item, place, levels - 1) for item, place in self._list(entry, "select", where))
        return SelectClause(for_each, for_each_or_null, columns, select)

    def _column(self, entry: Any, where: str) -> ColumnDefinition | None:
        if not self._object(entry, where, COLUMN):
            return None
        collection = entry.get("collection")
        if collection is not None and not isinstance(collection, bool):
            self.wrong(join(where, "collection"), "must be true or false")
            collection = None
        description = entry.get("description")
        if description is not None and not isinstance(description, str):
            self.wrong(join(where, "description"), "must be text")
            description = None
        name = self._text(entry, "name", where, required=True)
        path, kind = self._text(entry, "path", where), self._text(entry, "type", where)
        return None if name is None else ColumnDefinition(name, path, kind, collection, description)

    def _object(self, entry: Any, where: str, known: tuple[str, ...]) -> bool:
        """Whether the entry is an object; keys of it that nobody knows are noted."""
        if not isinstance(entry, dict):
            self.wrong(where, "must be an object")
            return False
        self._once(entry, where)
        for key in entry:
            if key not in known:
                near = nearest(key, list(known))
                hint = f"did you mean {near}?" if near else f"known keys: {', '.join(known)}"
                self.wrong(join(where, key), f"the key {key!r} is unknown", hint)
        return True

    def _once(self, entry: dict[str, Any], where: str) -> None:
        """Note the keys that stand twice: the text under the first would be lost."""
        for key in repeated(entry):
            place, hint = join(where, key), "keep one of them"
            self.wrong(place, f"the key {key!r} stands here twice", hint, reference="lookup-duplicate-key")

    def _text(self, entry: dict[str, Any], key: str, where: str, *, required: bool = False) -> str | None:
        value = entry.get(key)
        if isinstance(value, str) and value.strip():
            return value
        if value is not None:
            self.wrong(join(where, key), "must be text that is not empty")
        elif required:
            self.wrong(join(where, key), f"the key {key} is missing")
        return None

    def _list(self, entry: dict[str, Any], key: str, where: str) -> Iterator[tuple[Any, str]]:
        """The entries of a list, each with its JSON path."""
        value, place = entry.get(key), join(where, key)
        if value is not None and not isinstance(value, list):
            self.wrong(place, "must be a list")
            return
        for number, item in enumerate(value or ()):
            yield item, f"{place}[{number}]"
