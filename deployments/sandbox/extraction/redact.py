"""Copy a resource with the requested elements only; mask required elements and unresolvable references.

Rules: document 3 §2, "Extraction semantics". Always included: type, id, the groups' profiles, and the reference to the
patient. Elements that the base resource requires and no group requests are included without their content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from deployments.sandbox.common.definitions.schema import Definition, ElementContent, Property, load_schema
from deployments.sandbox.extraction.selection import local_key
from deployments.sandbox.extraction.tree import Node, members
from deployments.sandbox.extraction.types import OWNERS, ElementPath

ABSENT_REASON = "http://hl7.org/fhir/StructureDefinition/data-absent-reason"
MASKED = {"extension": [{"url": ABSENT_REASON, "valueCode": "masked"}]}
"""An element with masked content."""


def complete(copy: Node, original: Node, tree: Mapping[str, Any]) -> None:
    """Add the missing required elements to the copy of a resource, in place.

    ``tree`` maps the requested element names (``value[x]`` for all types of a choice) to the elements below them, or to
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
        if copy.keys().isdisjoint(keys) and not _is_fully_requested(base, tree, definition):
            key = next((key for key in keys if key in original), keys[0])
            _put(copy, original, key, definition)


def _descend(copy: Node, original: Node, name: str, below: Mapping[str, Any], definition: Definition) -> None:
    """Complete a partly requested element, and remove it if it is empty, because FHIR allows no empty objects."""
    base = name.removesuffix("[x]")
    for key in definition.choices.get(base, {base}) & copy.keys():
        found = definition.properties.get(key)
        if found is None or found.content is not ElementContent.COMPLEX:
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


def _is_fully_requested(base: str, tree: Mapping[str, Any], definition: Definition) -> bool:
    """Return True if a whole element was requested; for a choice, every type of the element."""
    return any(name in tree and tree[name] is None for name in (base, f"{base}[x]")) and (
        base not in definition.choices or f"{base}[x]" in tree
    )


def _put(copy: Node, original: Node, key: str, definition: Definition) -> None:
    """Add one masked element. An element that must have content, such as the URL of an extension, is copied."""
    found = definition.properties[key.removeprefix("_")]
    if found.content is ElementContent.PRIMITIVE and found.partner:
        copy[found.partner] = _as_listed(MASKED, found)
    elif found.content is ElementContent.COMPLEX:
        copy[key] = _as_listed(_empty(found.type), found)
    elif key in original:
        copy[key] = original[key]


def _empty(kind: str) -> Node:
    """Return a masked element of a type with its required children."""
    definition = load_schema().definitions[kind]
    made: Node = dict(MASKED)
    for keys in definition.required.values():
        _put(made, {}, keys[0], definition)
    return made


def _as_listed(value: Node, found: Property) -> Any:
    return [value] if found.is_list else value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


ElementTree = dict[str, Any]
"""Element names to the elements requested below them; None: everything."""


def element_tree(kind: str, paths: Iterable[ElementPath]) -> ElementTree:
    """Return the union of some element paths and the references to the patients of this type."""
    tree: ElementTree = {}
    for path in [*paths, *((*owner, "reference") for owner in OWNERS.get(kind, ()))]:
        level: ElementTree | None = tree
        for step in path[:-1]:
            below = level.setdefault(step, {}) if level is not None else None
            level = below
        if level is not None:
            level[path[-1]] = None
    return tree


def redact(node: Node, tree: ElementTree, profiles: Sequence[str], keeps: Callable[[str], bool]) -> Node:
    """Return the redacted copy. ``keeps`` returns True if ``Type/id`` is in the result; ``profiles``: the groups'."""
    chosen = _copy(node, tree)
    complete(chosen, node, tree)
    meta = chosen.pop("meta", None)
    copy: Node = {
        "resourceType": node["resourceType"],
        "id": node["id"],
        "meta": (meta if isinstance(meta, dict) else {}) | {"profile": list(profiles)},
    }
    copy |= chosen
    contained = copy.get("contained")
    inner = {item.get("id") for item in contained if isinstance(item, dict)} if isinstance(contained, list) else set()
    return {
        name: _mask(value, keeps, inner) if isinstance(value, dict | list) else value for name, value in copy.items()
    }


def _copy(node: Node, tree: ElementTree) -> Node:
    names: dict[str, ElementTree | None] = {}
    for element, below in tree.items():
        for name in members(node, element):
            known = names.get(name, {})
            # A member can be requested twice, as value[x] and as valueQuantity: use the wider request.
            names[name] = None if below is None or known is None else known | below
            if f"_{name}" in node:
                names[f"_{name}"] = None
        if f"_{element}" in node:
            names[f"_{element}"] = None
    return {name: _below(node[name], names[name]) for name in node if name in names}


def _below(value: Any, tree: ElementTree | None) -> Any:
    if tree is None:
        return value
    if isinstance(value, list):
        return [_below(item, tree) for item in value]
    return _copy(value, tree) if isinstance(value, dict) else value


def _mask(value: Any, keeps: Callable[[str], bool], contained: set[Any]) -> Any:
    if isinstance(value, list):
        return [_mask(item, keeps, contained) if isinstance(item, dict | list) else item for item in value]
    reference = value.get("reference")
    if isinstance(reference, str):
        key = local_key(reference)
        stays = reference[1:] in contained if reference.startswith("#") else key is not None and keeps(key)
        if not stays:
            rest = {name: item for name, item in value.items() if name not in ("reference", "_reference")}
            return {"_reference": MASKED} | _mask(rest, keeps, contained)
    return {
        name: _mask(item, keeps, contained) if isinstance(item, dict | list) else item for name, item in value.items()
    }
