"""Puts in what FHIR requires of a resource and no group asks for: without content, ``data-absent-reason`` ``masked``.

Document 3 §2, "Extraction semantics": what comes out validates against the base resource. An element that was asked for
and is not in the data is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.sandbox.common.definitions.schema import Content, Definition, Property, load_schema
from deployments.sandbox.extraction.tree import Node

ABSENT_REASON = "http://hl7.org/fhir/StructureDefinition/data-absent-reason"
MASKED = {"extension": [{"url": ABSENT_REASON, "valueCode": "masked"}]}
"""An element whose content is not told."""


def complete(copy: Node, original: Node, tree: Mapping[str, Any]) -> None:
    """Complete the copy of a resource, in place.

    ``tree`` says which elements were asked for: names (``value[x]`` for all types of a choice) to what is below them,
    None for everything.
    """
    definition = load_schema().definitions.get(str(original["resourceType"]))
    if definition is not None:
        _complete(copy, original, tree, definition)


def _complete(copy: Node, original: Node, tree: Mapping[str, Any], definition: Definition) -> None:
    for name, below in tree.items():
        if below is not None:
            _descend(copy, original, name, below, definition)
    for base, keys in definition.required.items():
        if copy.keys().isdisjoint(keys) and not _asked(base, tree, definition):
            key = next((key for key in keys if key in original), keys[0])
            _put(copy, original, key, definition)


def _descend(copy: Node, original: Node, name: str, below: Mapping[str, Any], definition: Definition) -> None:
    """Complete what was asked for in part; of what nothing is left then goes, because FHIR knows no empty objects."""
    base = name.removesuffix("[x]")
    for key in definition.choices.get(base, {base}) & copy.keys():
        found = definition.properties.get(key)
        if found is None or found.content is not Content.COMPLEX:
            continue
        inner = load_schema().definitions[found.type]
        for one, source in zip(_listed(copy[key]), _listed(original[key]), strict=True):
            if isinstance(one, dict):
                _complete(one, source, below, inner)
        left = [one for one in _listed(copy[key]) if one != {}]
        if not left:
            del copy[key]
        elif isinstance(copy[key], list):
            copy[key] = left


def _asked(base: str, tree: Mapping[str, Any], definition: Definition) -> bool:
    """Whether a whole element was asked for; of a choice, every type of it."""
    return any(name in tree and tree[name] is None for name in (base, f"{base}[x]")) and (
        base not in definition.choices or f"{base}[x]" in tree
    )


def _put(copy: Node, original: Node, key: str, definition: Definition) -> None:
    """Put in one element. What cannot be without content, such as the URL of an extension, is copied."""
    found = definition.properties[key.removeprefix("_")]
    if found.content is Content.PRIMITIVE and found.partner:
        copy[found.partner] = _as_listed(MASKED, found)
    elif found.content is Content.COMPLEX:
        copy[key] = _as_listed(_empty(found.type), found)
    elif key in original:
        copy[key] = original[key]


def _empty(kind: str) -> Node:
    """An element of a type with what that requires, all of it masked."""
    definition = load_schema().definitions[kind]
    made: Node = dict(MASKED)
    for keys in definition.required.values():
        _put(made, {}, keys[0], definition)
    return made


def _as_listed(value: Node, found: Property) -> Any:
    return [value] if found.is_list else value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
