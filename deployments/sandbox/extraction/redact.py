"""Copy a resource with the requested elements only; mask required elements and references that leave the result.

Always there: type, id, the groups' profiles, and the reference to the patient. Elements that the base resource requires
and no group requests are there without their content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from deployments.sandbox.extraction.tree import Node, members
from deployments.sandbox.extraction.vocabulary import OWNERS, ElementPath
from deployments.sandbox.r4 import local_key, schema

ElementTree = dict[str, Any]
"""Element names (``value[x]`` for all types of a choice) to the elements requested below them; None: everything."""

ABSENT_REASON: Final = "http://hl7.org/fhir/StructureDefinition/data-absent-reason"
MASKED: Final = {"extension": [{"url": ABSENT_REASON, "valueCode": "masked"}]}
"""An element with masked content."""
_REF: Final = "#/definitions/"


def element_tree(kind: str, paths: Iterable[ElementPath]) -> ElementTree:
    """Return the union of some element paths and the references to the patients of this type."""
    tree: ElementTree = {}
    for path in [*paths, *((*owner, "reference") for owner in OWNERS.get(kind, ()))]:
        level: ElementTree | None = tree
        for step in path[:-1]:
            level = level.setdefault(step, {}) if level is not None else None
        if level is not None:
            level[path[-1]] = None
    return tree


def redact(node: Node, tree: ElementTree, profiles: Sequence[str], keeps: Callable[[str], bool]) -> Node:
    """Return the redacted copy. ``keeps`` returns whether ``Type/id`` is in the result; ``profiles``: the groups'."""
    chosen = _copy(node, tree)
    _complete(chosen, node, tree, str(node["resourceType"]))
    meta = chosen.pop("meta", None)
    copy: Node = {
        "resourceType": node["resourceType"],
        "id": node["id"],
        "meta": (meta if isinstance(meta, dict) else {}) | {"profile": list(profiles)},
    }
    copy |= chosen
    contained = copy.get("contained")
    inner = {item.get("id") for item in contained if isinstance(item, dict)} if isinstance(contained, list) else set()
    masked: Node = _mask(copy, keeps, inner)
    return masked


def _copy(node: Node, tree: ElementTree) -> Node:
    names: dict[str, ElementTree | None] = {}
    for element, below in tree.items():
        for name in members(node, element):
            known = names.get(name, {})
            # A member can be requested twice, as value[x] and as valueQuantity: use the wider request.
            names[name] = None if below is None or known is None else known | below
            names[f"_{name}"] = None
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
        return [_mask(item, keeps, contained) for item in value]
    if not isinstance(value, dict):
        return value
    copy = {name: _mask(item, keeps, contained) for name, item in value.items()}
    reference = value.get("reference")
    if isinstance(reference, str):
        key = local_key(reference)
        stays = reference[1:] in contained if reference.startswith("#") else key is not None and keeps(key)
        if not stays:
            del copy["reference"]
            copy = {"_reference": MASKED} | {name: item for name, item in copy.items() if name != "_reference"}
    return copy


# Required elements


def _complete(copy: Node, original: Node, tree: Mapping[str, Any], kind: str) -> None:
    """Add the missing required elements of a type to a copy, in place."""
    for name, below in tree.items():
        if below is not None:
            _complete_below(copy, original, name, below, kind)
    for keys in _required(kind):
        if copy.keys().isdisjoint(keys):
            _put(copy, original, next((key for key in keys if key in original), keys[0]), kind)


def _complete_below(copy: Node, original: Node, name: str, below: Mapping[str, Any], kind: str) -> None:
    """Complete a partly requested element, and remove it if it is empty: FHIR allows no empty objects."""
    for key in [*members(copy, name)]:
        inner = _type(kind, key)
        if inner is None:
            continue
        for one, source in zip(_listed(copy[key]), _listed(original[key]), strict=True):
            if isinstance(one, dict):
                _complete(one, source, below, inner)
        left = [one for one in _listed(copy[key]) if one != {}]
        if not left:
            del copy[key]
        elif isinstance(copy[key], list):
            copy[key] = left


def _put(copy: Node, original: Node, key: str, kind: str) -> None:
    """Add one masked element. An element that must have content, such as the URL of an extension, is copied."""
    properties = _properties(kind)
    inner = _type(kind, key)
    if inner is not None:
        made: Node = dict(MASKED)
        for keys in _required(inner):
            _put(made, {}, keys[0], inner)
        copy[key] = [made] if "items" in properties[key] else made
    elif f"_{key}" in properties:
        copy[f"_{key}"] = [MASKED] if "items" in properties[key] else MASKED
    elif key in original:
        copy[key] = original[key]


def _required(kind: str) -> Iterator[list[str]]:
    """Yield the JSON names of each element that a type requires: one of them must be there."""
    definition = schema()["definitions"].get(kind, {})
    yield from ([name] for name in definition.get("required", ()) if name != "resourceType")
    yield from ([each["required"][0] for each in group["anyOf"]] for group in definition.get("allOf", ()))


def _properties(kind: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = schema()["definitions"].get(kind, {}).get("properties", {})
    return found


def _type(kind: str, key: str) -> str | None:
    """Return the complex type of a member, or None for a primitive or an unknown one."""
    found = _properties(kind).get(key, {})
    name = found.get("items", found).get("$ref", "").removeprefix(_REF)
    return name if name[:1].isupper() and name != "ResourceList" else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
