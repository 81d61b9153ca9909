"""The token and date search parameters that a group may filter by: all that FHIR R4 gives a type.

What they look at is read from ``search-parameters.json``, which is made of a published package.
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
"""The type whose parameters every type has."""


@dataclass(frozen=True)
class SearchElement:
    """Elements at a path; of those where ``where`` says so, what is at the path ``then`` below them."""

    path: ElementPath
    where: tuple[str, str] | None = None
    """Name and value of a child."""
    then: ElementPath = ()

    def values(self, node: Node) -> Iterator[Any]:
        """What it finds in a resource."""
        for value in values(node, self.path):
            if self.where is None or (isinstance(value, dict) and value.get(self.where[0]) == self.where[1]):
                yield from values(value, self.then)


SearchElements = tuple[SearchElement, ...]


def search_elements(kind: str, sort: str, parameter: str) -> SearchElements:
    """What a search parameter of a type looks at, ``sort`` being token or date; nothing when there is none."""
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
    """What a search parameter looks at in a resource."""
    for look in looks:
        yield from look.values(node)


def matches(value: object, codes: Iterable[tuple[str, str]]) -> bool:
    """Whether a value has one of the codes (FHIR R4, search, "token").

    A bare value, such as a code or a boolean, has no system to compare.
    """
    known = set(_tokens(value))
    bare = not isinstance(value, dict)
    return any((system, code) in known or (bare and any(code == other for _, other in known)) for system, code in codes)


def _tokens(value: object) -> Iterator[tuple[str, str]]:
    """System and code of codings, system and value of an Identifier or a ContactPoint."""
    if isinstance(value, bool):
        yield "", str(value).lower()
    elif isinstance(value, dict) and isinstance(value.get("value"), str):
        system = value.get("system")
        yield (system if isinstance(system, str) else ""), value["value"]
    else:
        yield from codings(value)
