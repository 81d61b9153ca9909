"""The lookup file: for every profile a table that says which columns an element becomes (document 3 §5).

A JSON list of tables ``{url, resourceType, elements}``; ``elements`` maps an element id to ``{viewDefinition,
children?, parent?}``. It is read at start, before a job exists, and everything that is wrong with it is told at once.

Errors (``InputError``): ``lookup-unreadable``, ``lookup-not-json``, ``lookup-duplicate-key``,
``lookup-schema-violation``, ``lookup-duplicate-table``, ``lookup-multiple-parents``, ``lookup-child-cycle``.
Warnings: ``unresolved-child``, ``parent-mismatch``, ``parent-not-prefix``, ``column-name``,
``bare-choice``, ``code-of-concept``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tasks.flattening.element_path import Shape, WrittenTable
from tasks.flattening.hierarchy import Disagreement, Hierarchy
from tasks.flattening.lookup_document import join, read_document
from tasks.flattening.r4_paths import oddities
from tasks.flattening.where_clause import SelectClause
from tasks.shared.errors import InputError, SluiceError

NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
"""What SQL on FHIR takes as the name of a view or a column."""

_HINTS: Final = {
    "lookup-multiple-parents": "an element belongs below one element: name it in one list of children",
    "lookup-child-cycle": "take one of these elements out of the children of the one before it",
}


@dataclass(frozen=True, slots=True)
class Element:
    """One element: the clause it becomes, and where it belongs.

    ``children`` and ``parent`` name elements of the same table, and agree with each other; no element is below itself.
    """

    id: str
    definition: SelectClause
    children: tuple[str, ...] = ()
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """What a profile's elements become; ``url`` is the profile's canonical URL."""

    url: str
    resource_type: str
    elements: Mapping[str, Element]


@dataclass(frozen=True, slots=True)
class Lookup:
    """The tables of a lookup file by canonical URL."""

    tables: Mapping[str, Table]


def read_lookup(path: Path) -> tuple[Lookup | None, list[SluiceError], list[str]]:
    """The lookup file, everything that is wrong with it, and what is odd about it. No lookup when anything is wrong.

    Raises nothing for what may stand in the file, nor when it cannot be read: that is a finding as well.
    """
    try:
        document = read_document(path)
    except InputError as error:
        return None, [error], []
    shape = Shape(path)
    tables: dict[str, Table] = {}
    places: dict[str, str] = {}
    warnings: list[str] = []
    for written in shape.tables(document):
        hierarchy = Hierarchy(written.elements)
        _tell_errors(shape, written, hierarchy)
        if written.url is None:
            continue
        first = places.setdefault(written.url, written.where)
        if first != written.where:
            hint = "keep one table for each profile"
            message = f"there is a table with this url already, at {first}"
            shape.wrong(join(written.where, "url"), message, hint, reference="lookup-duplicate-table")
        warnings += _warnings(written, hierarchy)
        tables[written.url] = Table(written.url, written.resource_type or "", _elements(written, hierarchy))
    if shape.findings:
        return None, list(shape.findings), warnings
    return Lookup(tables), [], warnings


def lookup_findings(path: Path) -> list[SluiceError]:
    """Everything that is wrong with the file, for the checks before a job exists."""
    return read_lookup(path)[1]


def lookup_warnings(path: Path) -> list[str]:
    """What is odd about the file, though it can be used."""
    return read_lookup(path)[2]


def _tell_errors(shape: Shape, written: WrittenTable, hierarchy: Hierarchy) -> None:
    for error in hierarchy.errors:
        where = join(join(written.where, "elements"), error.element)
        message = f"element {error.element}: {error.message}"
        shape.wrong(where, message, _HINTS.get(error.reference), reference=error.reference)


def _elements(written: WrittenTable, hierarchy: Hierarchy) -> dict[str, Element]:
    return {
        element_id: Element(
            element_id, element.definition, tuple(hierarchy.children[element_id]), hierarchy.parents.get(element_id)
        )
        for element_id, element in written.elements.items()
    }


def _warnings(written: WrittenTable, hierarchy: Hierarchy) -> Iterator[str]:
    for warning in (*hierarchy.warnings, *_unusual_names(written), *_refused_paths(written, hierarchy)):
        yield f"{warning.reference}: lookup table {written.url}, element {warning.element}: {warning.message}"


def _unusual_names(written: WrittenTable) -> Iterator[Disagreement]:
    for element_id, element in written.elements.items():
        for name in _names(element.definition):
            if not NAME.match(name):
                message = (
                    f"the column {name!r} is not named with letters, digits and underscores, a letter first; "
                    "a flattening service may refuse it"
                )
                yield Disagreement(element_id, "column-name", message)


def _refused_paths(written: WrittenTable, hierarchy: Hierarchy) -> Iterator[Disagreement]:
    """Paths that real runners refuse; those of an element begin where the elements above it iterate."""
    if hierarchy.errors:
        return
    for element_id, element in written.elements.items():
        context: list[str] = []
        above = hierarchy.parents.get(element_id)
        while above is not None:
            clause = written.elements[above].definition
            context += filter(None, (clause.for_each or clause.for_each_or_null,))
            above = hierarchy.parents.get(above)
        for reference, message in oddities(written.resource_type, element.definition, ".".join(reversed(context))):
            yield Disagreement(element_id, reference, message)


def _names(clause: SelectClause) -> Iterator[str]:
    yield from (column.name for column in clause.columns)
    for part in clause.select:
        yield from _names(part)
