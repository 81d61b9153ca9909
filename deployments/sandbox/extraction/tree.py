"""FHIR JSON as plain values. A decimal stays raw text and never becomes a float: ``1.50`` stays ``1.50``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from deployments.sandbox.fhirpath import R4

Node = dict[str, Any]
"""A FHIR object: text, bool, int, ``msgspec.Raw`` (a decimal), and lists and objects of them."""

_DECODER: Final = msgspec.json.Decoder(dict[str, Any], float_hook=lambda text: msgspec.Raw(text.encode()))
CHOICES: Final = frozenset(kind for kinds in R4["choiceTypePaths"].values() for kind in kinds)
"""Types of a choice element ``[x]`` in FHIR R4, as suffixes of its JSON name."""


def decode(body: bytes) -> Node:
    """Return a resource as plain values. Raises ``msgspec.DecodeError``, whose text quotes no values."""
    return _DECODER.decode(body)


def number(value: object) -> Decimal | None:
    """Return a JSON number with its exact value, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | msgspec.Raw):
        return None
    try:
        return Decimal(value) if isinstance(value, int) else Decimal(bytes(value).decode("ascii"))
    except (InvalidOperation, UnicodeDecodeError):
        return None


def members(node: Node, name: str) -> Iterator[str]:
    """Yield the JSON names in ``node`` for an element name: ``valueQuantity`` for ``value[x]`` and so on."""
    if not name.endswith("[x]"):
        if name in node:
            yield name
        return
    stem = name[:-3]
    for key in node:
        if key.startswith(stem) and key[len(stem) :] in CHOICES:
            yield key


def values(node: object, path: Sequence[str]) -> Iterator[Any]:
    """Yield every value at an element path below a node, through lists."""
    if isinstance(node, list):
        for item in node:
            yield from values(item, path)
    elif not path:
        if node is not None:
            yield node
    elif isinstance(node, dict):
        for name in members(node, path[0]):
            yield from values(node[name], path[1:])


def codings(value: object) -> Iterator[tuple[str, str]]:
    """Yield ``(system, code)`` of a Coding, a CodeableConcept, or a bare code (system empty)."""
    if isinstance(value, str):
        yield "", value
    elif isinstance(value, dict):
        inner = value.get("coding")
        for item in inner if isinstance(inner, list) else [value]:
            if isinstance(item, dict) and isinstance(item.get("code"), str):
                system = item.get("system")
                yield (system if isinstance(system, str) else ""), item["code"]


def has_code(value: object, codes: Iterable[tuple[str, str]]) -> bool:
    """Return whether a Coding, CodeableConcept or bare code has one of the codes; a bare code matches any system."""
    found = set(codings(value))
    bare = isinstance(value, str)
    return any((system, code) in found or (bare and ("", code) in found) for system, code in codes)


def references(node: object) -> Iterator[Node]:
    """Yield every literal Reference at or below a node."""
    if isinstance(node, list):
        for item in node:
            yield from references(item)
    elif isinstance(node, dict):
        if isinstance(node.get("reference"), str):
            yield node
        for value in node.values():
            if isinstance(value, dict | list):
                yield from references(value)
