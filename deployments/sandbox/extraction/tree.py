"""FHIR JSON as plain values, with numbers in their original spelling.

``1.50`` must remain ``1.50`` (document 3 §1), so a decimal is kept as raw text and never becomes a float.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from deployments.sandbox.common.json_text import as_raw

Node = dict[str, Any]
"""A FHIR object: text, bool, int, ``msgspec.Raw`` (a decimal), and lists and objects of them."""

_DECODER = msgspec.json.Decoder(dict[str, Any], float_hook=as_raw)

CHOICES = tuple(
    """
    Base64Binary Boolean Canonical Code Date DateTime Decimal Id Instant Integer Markdown Oid PositiveInt String Time
    UnsignedInt Uri Url Uuid Address Age Annotation Attachment CodeableConcept Coding ContactPoint Count Distance
    Duration HumanName Identifier Money Period Quantity Range Ratio Reference SampledData Signature Timing
    ContactDetail Contributor DataRequirement Expression ParameterDefinition RelatedArtifact TriggerDefinition
    UsageContext Dosage Meta
    """.split()  # noqa: SIM905 - one type per line would be 50 lines
)
"""Types of a choice element ``[x]`` in FHIR R4, as suffixes of its JSON name."""

_CHOICES = frozenset(CHOICES)


def decode(body: bytes) -> Node:
    """Return a resource as plain values. Raises ``msgspec.DecodeError``, whose text quotes no values."""
    return _DECODER.decode(body)


def number(value: object) -> Decimal | None:
    """Return a JSON number with its exact value, or None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return Decimal(value)
    if isinstance(value, msgspec.Raw):
        try:
            return Decimal(bytes(value).decode("ascii"))
        except (InvalidOperation, UnicodeDecodeError):
            return None
    return None


def members(node: Node, name: str) -> Iterator[str]:
    """Yield the JSON names in ``node`` for an element name: ``valueQuantity`` for ``value[x]`` and so on."""
    if not name.endswith("[x]"):
        if name in node:
            yield name
        return
    stem = name[:-3]
    for key in node:
        if key.startswith(stem) and key[len(stem) :] in _CHOICES:
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


def has_code(value: object, codes: Iterable[tuple[str, str]]) -> bool:
    """Return True if a Coding, CodeableConcept or bare code has one of the codes; a bare code matches any system."""
    found = set(codings(value))
    bare = isinstance(value, str)
    return any(
        (system, code) in found or ((bare or not system) and any(code == other for _, other in found))
        for system, code in codes
    )
