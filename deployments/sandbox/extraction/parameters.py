"""Token and date search parameters for the filters of a group: all that FHIR R4 defines for a type.

Their elements are read from ``search-parameters.json``, which is made from a published package.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from deployments.sandbox.common.definitions.schema import DEFINITIONS
from deployments.sandbox.extraction.tree import Node, codings, values
from deployments.sandbox.extraction.types import ElementPath

ANY = "Resource"
"""Type whose parameters apply to every type."""


@dataclass(frozen=True)
class SearchElement:
    """Elements at a path, restricted to those that meet ``where``, then the elements at ``then`` below them."""

    path: ElementPath
    where: tuple[str, str] | None = None
    """Name and value of a required child."""
    then: ElementPath = ()

    def values(self, node: Node) -> Iterator[Any]:
        """Yield the values in a resource."""
        for value in values(node, self.path):
            if self.where is None or (isinstance(value, dict) and value.get(self.where[0]) == self.where[1]):
                yield from values(value, self.then)


SearchElements = tuple[SearchElement, ...]


def search_elements(kind: str, sort: str, parameter: str) -> SearchElements:
    """Return the elements of a search parameter; ``sort`` is token or date. Empty if the type has no such parameter."""
    table = _table()
    return tuple(
        _search_element(each) for owner in (kind, ANY) for each in table.get(owner, {}).get(sort, {}).get(parameter, ())
    )


@functools.cache
def _table() -> dict[str, dict[str, dict[str, list[dict[str, Any]]]]]:
    table: dict[str, Any] = msgspec.json.decode((DEFINITIONS / "search-parameters.json").read_bytes())["parameters"]
    return table


def _search_element(entry: dict[str, Any]) -> SearchElement:
    where = entry.get("where")
    return SearchElement(tuple(entry["path"]), tuple(where) if where else None, tuple(entry.get("then", ())))


def searched_values(looks: SearchElements, node: Node) -> Iterator[Any]:
    """Yield the values in a resource that a search parameter compares."""
    for look in looks:
        yield from look.values(node)


def matches(value: object, codes: Iterable[tuple[str, str]]) -> bool:
    """Return True if a value has one of the codes (FHIR R4, search, "token").

    A bare value, such as a code or a boolean, has no system to compare.
    """
    known = set(_tokens(value))
    bare = not isinstance(value, dict)
    return any((system, code) in known or (bare and any(code == other for _, other in known)) for system, code in codes)


def _tokens(value: object) -> Iterator[tuple[str, str]]:
    """Yield system and code of codings, system and value of an Identifier or a ContactPoint."""
    if isinstance(value, bool):
        yield "", str(value).lower()
    elif isinstance(value, dict) and isinstance(value.get("value"), str):
        system = value.get("system")
        yield (system if isinstance(system, str) else ""), value["value"]
    else:
        yield from codings(value)
