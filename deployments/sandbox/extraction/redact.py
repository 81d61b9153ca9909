"""Copies a resource with the requested elements only, and masks references that leave the result.

Rules: document 3 §2, "Extraction semantics". Besides the elements: type, id, ``meta.profile``, and the reference to the
patient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from deployments.sandbox.extraction.selection import local_key
from deployments.sandbox.extraction.tree import Node, members
from deployments.sandbox.extraction.types import OWNERS, ElementPath

Wanted = dict[str, Any]
"""Element names to what is wanted below them; None: everything."""

MASKED = {"extension": [{"url": "http://hl7.org/fhir/StructureDefinition/data-absent-reason", "valueCode": "masked"}]}
"""What stands in place of a Reference that leaves the result."""


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


def redact(node: Node, tree: Wanted, keeps: Callable[[str], bool]) -> Node:
    """The copy of a resource; ``keeps`` says whether ``Type/id`` is in the result."""
    copy: Node = {"resourceType": node["resourceType"], "id": node["id"]}
    meta = node.get("meta")
    if isinstance(meta, dict) and meta.get("profile"):
        copy["meta"] = {"profile": meta["profile"]}
    chosen = _copy(node, tree)
    if "meta" in copy and "meta" in chosen:
        chosen["meta"] = copy["meta"] | chosen["meta"]
    # Of a subject without a literal reference nothing is left, and FHIR knows no empty objects.
    copy |= {name: value for name, value in chosen.items() if value != {}}
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
            return dict(MASKED)
    return {
        name: _mask(item, keeps, contained) if isinstance(item, dict | list) else item for name, item in value.items()
    }
