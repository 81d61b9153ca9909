"""The functions of SQL on FHIR and those that the FHIRPath library lacks, for the paths of a view.

``getResourceKey()`` and ``getReferenceKey()`` return values for joining the rows of two views: ``Type/id``, which is
unique over all types and can be read from a reference alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.sandbox.common.fhirpath import (
    EvaluationError,
    ExpressionError,
    Item,
    Node,
    check_calls,
    data_of,
    element,
    has_value,
    is_nothing,
    nodes,
    variable,
)


def resource_key(data: Any) -> str | None:
    """Return the key of a resource, or None without an id."""
    if not isinstance(data, dict):
        return None
    kind, identity = data.get("resourceType"), data.get("id")
    return f"{kind}/{identity}" if isinstance(kind, str) and isinstance(identity, str) else None


def reference_key(data: Any, wanted: str | None) -> str | None:
    """Return the key of the resource that a Reference names, or None if there is none of the ``wanted`` type.

    Version and server are omitted. A reference other than ``Type/id`` (``urn:uuid:…``, ``#contained``) is its own key,
    with the type in ``Reference.type``.
    """
    reference = data.get("reference") if isinstance(data, dict) else None
    if not isinstance(reference, str):
        return None
    parts = reference.partition("/_history/")[0].split("/")
    if len(parts) < 2 or not parts[-2][:1].isupper():
        return reference if wanted is None or data.get("type") == wanted else None
    kind, identity = parts[-2:]
    return f"{kind}/{identity}" if wanted is None or kind == wanted else None


def _extension(_context: Node, items: list[Item], url: str) -> list[Item]:
    """Return all extensions with that URL; the library's function stops at the first one of each element."""
    elements = [data_of(item) for item in items]
    listed = [element.get("extension", ()) for element in elements if isinstance(element, dict)]
    return [element(each, "Extension") for found in listed for each in found if each.get("url") == url]


def _join(_context: Node, items: list[Item], separator: str = "") -> list[Item]:
    """Return the joined texts; an empty text for none, as in the tests of SQL on FHIR but not in FHIRPath."""
    texts = [data_of(item) for item in items if not is_nothing(item)]
    if not all(isinstance(each, str) for each in texts):
        raise EvaluationError
    return [separator.join(str(each) for each in texts)]


def _single(_context: Node, items: list[Item]) -> list[Item]:
    """Return the only item, or none; the library's function returns an object that looks like data for several."""
    if len(items) > 1:
        raise EvaluationError
    return items


def _resource_key(_context: Node, items: list[Item]) -> list[Item]:
    keys = (resource_key(data_of(item)) for item in items)
    return [key for key in keys if key is not None]


def _reference_key(_context: Node, items: list[Item], wanted: Any = None) -> list[Item]:
    name = None if wanted is None else wanted.name
    keys = (reference_key(data_of(item), name) for item in items)
    return [key for key in keys if key is not None]


OWN: Mapping[str, Any] = {
    "extension": {"fn": _extension, "arity": {1: ["String"]}},
    "hasValue": {"fn": has_value, "arity": {0: []}},
    "join": {"fn": _join, "arity": {0: [], 1: ["String"]}},
    "single": {"fn": _single, "arity": {0: []}},
    "getResourceKey": {"fn": _resource_key, "arity": {0: []}},
    "getReferenceKey": {"fn": _reference_key, "arity": {0: [], 1: ["TypeSpecifier"]}},
}
_REFUSED = frozenset({"trace"})
"""Supported by the library, but writes data to the console."""


def check(tree: Node, text: str, variables: frozenset[str]) -> None:
    """Raise ``ExpressionError`` for an unknown function or variable."""
    for node in nodes(tree):
        if node["type"] == "ExternalConstantTerm" and variable(node) not in variables:
            raise ExpressionError(f"the constant %{variable(node)} in {text!r} is not defined")
    check_calls(tree, text, OWN, _REFUSED)
