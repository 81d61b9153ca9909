"""Copies a resource with the requested elements only, and masks what FHIR wants there and references that leave.

Rules: document 3 §2, "Extraction semantics". Besides the elements: type, id, the groups' profiles, and the reference to
the patient. Elements that the base resource requires and no group asks for are there without their content
(``required.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from deployments.sandbox.extraction.required import MASKED, complete
from deployments.sandbox.extraction.selection import local_key
from deployments.sandbox.extraction.tree import Node, members
from deployments.sandbox.extraction.types import OWNERS, ElementPath

Wanted = dict[str, Any]
"""Element names to what is wanted below them; None: everything."""


def wanted(kind: str, paths: Iterable[ElementPath]) -> Wanted:
    """The union of some element paths, and of the references that say whose resources of this type are."""
    tree: Wanted = {}
    for path in [*paths, *((*owner, "reference") for owner in OWNERS.get(kind, ()))]:
        level: Wanted | None = tree
        for step in path[:-1]:
            below = level.setdefault(step, {}) if level is not None else None
            level = below
        if level is not None:
            level[path[-1]] = None
    return tree


def redact(node: Node, tree: Wanted, profiles: Sequence[str], keeps: Callable[[str], bool]) -> Node:
    """The copy of a resource; ``keeps`` says whether ``Type/id`` is in the result, ``profiles`` are the groups'."""
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


def _copy(node: Node, tree: Wanted) -> Node:
    names: dict[str, Wanted | None] = {}
    for element, below in tree.items():
        for name in members(node, element):
            known = names.get(name, {})
            # The same member may be named twice, as value[x] and as valueQuantity: the wider wish wins.
            names[name] = None if below is None or known is None else known | below
            if f"_{name}" in node:
                names[f"_{name}"] = None
        if f"_{element}" in node:
            names[f"_{element}"] = None
    return {name: _below(node[name], names[name]) for name in node if name in names}


def _below(value: Any, tree: Wanted | None) -> Any:
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
