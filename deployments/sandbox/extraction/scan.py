"""What the index must know of each resource in an NDJSON file: who it is, whose, when, and where its bytes are.

Only the elements the index needs are decoded; nothing is kept of the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from deployments.sandbox.extraction.dates import Days, days_of
from deployments.sandbox.extraction.tree import Node, codings, values
from deployments.sandbox.extraction.types import CODES, DATES, OWNER, PATIENT
from deployments.sandbox.fhir.types import ID, LITERAL
from deployments.sandbox.serve import SandboxStartError

_UNWRAPPED = frozenset({"collection", "searchset", "transaction", "batch", "history"})
_PROBE = 64
REFERS = "->"
"""Stands for the system in a code key that is a reference to a Medication."""


_DATED = ("DateTime", "Period", "Timing", "Instant", "Date")
"""The types of a choice element that name days."""


def _names(element: str) -> list[str]:
    return [element[:-3] + choice for choice in _DATED] if element.endswith("[x]") else [element]


class _Entry(msgspec.Struct):
    resource: msgspec.Raw = msgspec.Raw(b"")


class _Line(msgspec.Struct, rename="camel"):
    resource_type: str
    type: Any = None
    entry: msgspec.Raw = msgspec.Raw(b"")


_LOOKED_AT = sorted(
    set(OWNER.values())
    | {where.path[0] for where in CODES.values()}
    | {where.reference[0] for where in CODES.values() if where.reference}
    | {name for kind in CODES if kind in DATES for name in _names(DATES[kind][0][0])}
)
_Head = msgspec.defstruct(
    "_Head",
    [("resourceType", str), ("id", str, ""), *((name, Any, None) for name in _LOOKED_AT)],
)
_HEAD = msgspec.json.Decoder(_Head, float_hook=str)


@dataclass(frozen=True, slots=True)
class Found:
    """One resource of a file. ``start`` and ``length`` in bytes of the uncompressed file."""

    type: str
    id: str
    patient: str | None
    """Id of the patient it belongs to; None when it belongs to none."""
    start: int
    length: int
    days: Days | None
    """When it happened, for criteria with a time restriction."""
    codes: tuple[str, ...]
    """Keys as ``code_key`` makes them."""


def code_key(system: str, code: str) -> str:
    """How a code is written in the index."""
    return f"{system}|{code}"


def scan(path: Path, name: str) -> Iterator[Found]:
    """The resources of an uncompressed NDJSON file, one per line or in Bundles.

    Raises ``SandboxStartError`` with file and line where a line is no resource; ``name`` is what the file is called.
    """
    start = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.isspace():
                try:
                    yield from _resources(line, start)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    raise SandboxStartError(f"{name}:{number} is no FHIR resource in JSON") from None
            start += len(line)


def _resources(line: bytes, offset: int) -> Iterator[Found]:
    text = line.removeprefix(b"\xef\xbb\xbf") if offset == 0 else line
    offset += len(line) - len(text)
    head = msgspec.json.decode(text, type=_Line)
    if head.resource_type != "Bundle" or head.type not in _UNWRAPPED:
        body = text.strip()
        yield from _found(body, offset + text.index(body[:1]))
        return
    if not bytes(head.entry):
        return
    position = 0
    for entry in msgspec.json.decode(head.entry, type=list[_Entry]):
        body = bytes(entry.resource)
        if body:
            position = _position(text, body, position)
            yield from _found(body, offset + position)
            position += len(body)


def _position(line: bytes, body: bytes, start: int) -> int:
    """Where an entry's resource begins; entries come in the order of the line."""
    probe, length = body[:_PROBE], len(body)
    while True:
        start = line.index(probe, start)
        if line[start : start + length] == body:
            return start
        start += 1


def _found(body: bytes, start: int) -> Iterator[Found]:
    head: Any = _HEAD.decode(body)
    kind, identity = head.resourceType, head.id
    if not ID.fullmatch(identity):
        return  # nothing can refer to it, and PUT Type/id could not store it
    node: Node = {name: value for name in _LOOKED_AT if (value := getattr(head, name)) is not None}
    patient = identity if kind == PATIENT else owner(kind, node)
    yield Found(kind, identity, patient, start, len(body), _days(kind, node), tuple(_codes(kind, node)))


def owner(kind: str, node: Node) -> str | None:
    """Id of the patient that a resource of the Patient compartment belongs to."""
    for value in values(node, (OWNER[kind],) if kind in OWNER else ("",)):
        reference = value.get("reference") if isinstance(value, dict) else None
        match = LITERAL.fullmatch(reference) if isinstance(reference, str) else None
        if match and match[1] == PATIENT:
            return match[2]
    return None


def _days(kind: str, node: Node) -> Days | None:
    if kind not in CODES or kind not in DATES:
        return None
    return next((days for value in values(node, DATES[kind][0]) if (days := days_of(value)) is not None), None)


def _codes(kind: str, node: Node) -> Iterator[str]:
    where = CODES.get(kind)
    if where is None:
        return
    for value in values(node, where.path):
        for system, code in codings(value):
            yield code_key(system, code)
    for value in values(node, where.reference) if where.reference else ():
        target = value.get("reference") if isinstance(value, dict) else None
        match = LITERAL.fullmatch(target) if isinstance(target, str) else None
        if match and match[1] == "Medication":
            yield code_key(REFERS, match[2])
