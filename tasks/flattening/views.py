"""The view of an attribute group: its ViewDefinition, from the CRTDL and the lookup file (document 3 §5).

First ``id`` and the patient, then the group's attributes in their order. An element brings what is below it; an
attribute that comes with another one is not repeated; what iterates becomes a select clause of its own.
Attributes below one that iterates share its clause: two would multiply rows, and put one coding's code beside the
display of another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tasks.flattening.compartment import PATIENT_PATH
from tasks.flattening.lookup import Element, Lookup, Table
from tasks.flattening.view_builder import Draft
from tasks.flattening.where_clause import ColumnDefinition
from tasks.shared.errors import InputError
from tasks.shared.fhir.crtdl import Crtdl
from tasks.shared.fhir.crtdl_model import AttributeGroup

RESOURCE_TYPE: Final = "https://sql-on-fhir.org/ig/StructureDefinition/ViewDefinition"

LONGEST_NAME: Final = 255
"""Characters of a computable name in FHIR."""


@dataclass(frozen=True)
class Column:
    """One column of a view's rows."""

    name: str
    type: str | None
    collection: bool


@dataclass(frozen=True)
class View:
    """What one attribute group becomes.

    ``definition`` is the ViewDefinition as it is sent; ``columns`` are those of its rows, in their order.
    """

    group_id: str
    group_name: str
    reference: str
    resource_type: str
    definition: dict[str, Any]
    columns: tuple[Column, ...]


def views(crtdl: Crtdl, lookup: Lookup) -> tuple[tuple[View, ...], tuple[str, ...]]:
    """The view of every group that has a table, in the order of the CRTDL, and what the user should know about them.

    Nothing is raised: a group without a table gets no view, an attribute without an entry no column, and a warning
    names it.
    """
    made: list[View] = []
    warnings: list[str] = []
    for group in crtdl.groups:
        table = lookup.tables.get(group.reference)
        if table is None:
            warnings.append(f"{_called(group)}: no lookup table has its profile {group.reference}; it gets no CSV")
            continue
        view, odd = _view(group, table)
        made.append(view)
        warnings += (f"{_called(group)}: {what}" for what in odd)
    return tuple(made), tuple(warnings)


def no_views() -> InputError:
    """No group has a view: there would be no table."""
    return InputError(
        "flattening-no-views", "flattening: no attribute group of the CRTDL has a table in the lookup file",
        context="services.flattening.lookup_path",
        hint="the url of a table must equal the groupReference of a group",
    )  # fmt: skip


def _view(group: AttributeGroup, table: Table) -> tuple[View, list[str]]:
    select, warnings = _select(group, table)
    warnings += (
        f"several columns are called {old}; one of them becomes {new}" for old, new in select.make_names_unique()
    )
    columns = tuple(Column(column.name, column.type, bool(column.collection)) for column in select.walk())
    name = group.name or group.id
    definition = {
        "resourceType": RESOURCE_TYPE,
        "name": view_name(name),
        "status": "active",
        "resource": table.resource_type,
        "select": [part.document() for part in select.selects],
    }
    return View(group.id, name, group.reference, table.resource_type, definition, columns), warnings


def view_name(name: str) -> str:
    """A name of a ViewDefinition, ``[A-Za-z][A-Za-z0-9_]*``, that recalls the name of a group."""
    plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")
    return (plain if plain[:1].isalpha() else f"group_{plain}".rstrip("_"))[:LONGEST_NAME]


def _select(group: AttributeGroup, table: Table) -> tuple[Draft, list[str]]:
    """All select clauses of a view, below one that holds nothing of its own; and what it lacks."""
    warnings: list[str] = []
    requested: dict[str, Element] = {}
    for attribute in group.attributes:
        element = table.elements.get(attribute.ref)
        if element is not None:
            requested[attribute.ref] = element
        else:
            warnings.append(f"the lookup table has no entry for the attribute {attribute.ref}; it gets no column")
    first = [ColumnDefinition("id", "id", "id")]
    if table.resource_type in PATIENT_PATH:
        first.append(ColumnDefinition("patient", PATIENT_PATH[table.resource_type], "string"))
    select = Draft(selects=[Draft(columns=first)])
    contexts: dict[str, Draft] = {}
    for element in requested.values():
        ancestors = list(_ancestors(table, element))
        if any(ancestor.id in requested for ancestor in ancestors):
            continue
        whole = _whole(table, element)
        if not whole.prune():
            warnings.append(f"the lookup table gives no column for the attribute {element.id}")
            continue
        context = _context(select, ancestors, contexts)
        if context is select:
            select.selects.append(whole)
        else:
            context.attach(whole)
    return select, warnings


def _ancestors(table: Table, element: Element) -> Iterator[Element]:
    """The elements above one, the nearest first."""
    while element.parent is not None:
        element = table.elements[element.parent]
        yield element


def _whole(table: Table, element: Element) -> Draft:
    """An element's clause with everything below it."""
    draft = Draft.of(element.definition)
    for child in element.children:
        draft.attach(_whole(table, table.elements[child]))
    return draft


def _context(select: Draft, ancestors: list[Element], contexts: dict[str, Draft]) -> Draft:
    """The clause in which an element's paths hold: what its ancestors iterate over, without their other columns.

    Attributes below one ancestor share its clause. Two clauses would multiply their rows, and put the code of one
    coding beside the display of another.
    """
    context = select
    for ancestor in reversed(ancestors):
        if not ancestor.definition.iterates:
            continue
        if ancestor.id not in contexts:
            contexts[ancestor.id] = Draft(ancestor.definition.for_each, ancestor.definition.for_each_or_null)
            context.selects.append(contexts[ancestor.id])
        context = contexts[ancestor.id]
    return context


def _called(group: AttributeGroup) -> str:
    return f"attribute group {group.name} ({group.id})" if group.name else f"attribute group {group.id}"
