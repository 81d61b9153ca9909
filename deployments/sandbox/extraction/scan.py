"""Index data of each resource in an NDJSON file: id, patients, days, codes and position.

Only the elements for the index are decoded; nothing else is kept. References inside a Bundle that name an entry by its
``fullUrl`` (``urn:uuid:…``) are resolved to that entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from deployments.sandbox.common.r4 import ID, LITERAL
from deployments.sandbox.extraction.dates import DayRange, days_of
from deployments.sandbox.extraction.tree import Node, codings, values
from deployments.sandbox.extraction.types import CODES, DATES, OWNERS, PATIENT, CodeElements

_UNWRAPPED = frozenset({"collection", "searchset", "transaction", "batch", "history"})
_PROBE = 64
REFERS = "->"
"""Replaces the system in a code key for a reference to a Medication."""
URL_REFERENCE = re.compile(rb'("reference"\s*:\s*")((?:urn|https?):[^"\\]+)(")')
"""A reference by URL in the text of a resource; it can name an entry of the same Bundle."""
_UUID = "urn:uuid:"

_DATED = ("DateTime", "Period", "Timing", "Instant", "Date")
"""Types of a choice element that contain a date."""


def _names(element: str) -> list[str]:
    return [element[:-3] + choice for choice in _DATED] if element.endswith("[x]") else [element]


class _ScannedEntry(msgspec.Struct, rename="camel"):
    full_url: Any = None
    resource: msgspec.Raw = msgspec.Raw(b"")


class _ScannedLine(msgspec.Struct, rename="camel"):
    resource_type: str
    type: Any = None
    entry: msgspec.Raw = msgspec.Raw(b"")


def _elements(kind: str) -> tuple[str, ...]:
    """Return the elements of a type that are decoded."""
    found = {path[0] for path in OWNERS.get(kind, ())}
    if kind in CODES:
        where = CODES[kind]
        found |= {where.path[0]} | ({where.reference[0]} if where.reference else set())
        found |= set(_names(DATES[kind][0][0])) if kind in DATES else set()
    return tuple(sorted(found))


_LOOKED_AT = {kind: _elements(kind) for kind in sorted(OWNERS.keys() | CODES.keys())}
_Head = msgspec.defstruct(
    "_Head",
    [
        ("resourceType", str),
        ("id", str, ""),
        *((name, Any, None) for name in sorted(set().union(*_LOOKED_AT.values()))),
    ],
)
_HEAD = msgspec.json.Decoder(_Head, float_hook=str)


@dataclass(frozen=True, slots=True)
class ScannedResource:
    """One resource of a file. ``start`` and ``length`` in bytes of the uncompressed file."""

    type: str
    id: str
    patients: tuple[str, ...]
    """Ids of the patients."""
    start: int
    length: int
    days: DayRange | None
    """Days of the resource, for criteria with a time restriction."""
    codes: tuple[str, ...]
    """Keys made by ``code_key``."""
    bundle: int | None = None
    """Offset of the Bundle's line if resources of this Bundle refer to each other by ``fullUrl``."""
    url: str | None = None
    """``fullUrl`` if the Bundle refers to this resource by it."""


@dataclass(frozen=True, slots=True)
class UnusableLine:
    """A line that is not a resource, or a resource without a usable id."""

    line: int
    """Line number from 1."""
    nameless: bool = False
    """True for a resource without a valid FHIR id: nothing can store or reference it."""


def code_key(system: str, code: str) -> str:
    """Return the key of a code in the index."""
    return f"{system}|{code}"


def scan(path: Path) -> Iterator[ScannedResource | UnusableLine]:
    """Yield the resources of an uncompressed NDJSON file, one per line or in Bundles; none of a bad line."""
    start = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.isspace():
                try:
                    found = list(_resources(line, start))
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    yield UnusableLine(number)
                else:
                    yield from (item if item is not None else UnusableLine(number, nameless=True) for item in found)
            start += len(line)


def _resources(line: bytes, offset: int) -> Iterator[ScannedResource | None]:
    # Invalid UTF-8 in an element that is not decoded here would fail a job later.
    line.decode("utf-8")
    text = line.removeprefix(b"\xef\xbb\xbf") if offset == 0 else line
    before = len(line) - len(text)
    head = msgspec.json.decode(text, type=_ScannedLine)
    if head.resource_type != "Bundle" or head.type not in _UNWRAPPED:
        body = text.strip()
        yield _found(_read(body), offset + before + text.index(body[:1]), len(body))
    elif bytes(head.entry):
        yield from _entries(text, offset + before, head.entry, offset)


def _read(body: bytes, url: object = None) -> Any:
    """Decode the indexed elements of a resource. Without an id, use that of the ``fullUrl`` ``urn:uuid:…``."""
    head: Any = _HEAD.decode(body)
    if not head.id and isinstance(url, str) and url.startswith(_UUID):
        head.id = url.removeprefix(_UUID)
    return head


def _entries(text: bytes, offset: int, entries: msgspec.Raw, bundle: int) -> Iterator[ScannedResource | None]:
    """Yield the entries of a Bundle. ``offset``: position of ``text`` in the file; ``bundle``: of the line."""
    used = {match[2].decode("utf-8") for match in URL_REFERENCE.finditer(text)}
    read: list[tuple[Any, int, int, str | None]] = []
    position = 0
    for entry in msgspec.json.decode(entries, type=list[_ScannedEntry]):
        body = bytes(entry.resource)
        if not body:
            continue
        position = _position(text, body, position)
        url = entry.full_url if entry.full_url in used else None
        read.append((_read(body, entry.full_url), offset + position, len(body), url))
        position += len(body)
    named = ((url, f"{head.resourceType}/{head.id}") for head, _, _, url in read if url is not None)
    targets = {url: key for url, key in named if LITERAL.fullmatch(key)}
    for head, start, length, url in read:
        known = url if url in targets else None
        yield _found(head, start, length, bundle if targets else None, known, targets)


def _position(line: bytes, body: bytes, start: int) -> int:
    """Return the offset of an entry's resource; entries come in the order of the line."""
    probe, length = body[:_PROBE], len(body)
    while True:
        start = line.index(probe, start)
        if line[start : start + length] == body:
            return start
        start += 1


def _found(
    head: Any,
    start: int,
    length: int,
    bundle: int | None = None,
    url: str | None = None,
    targets: Mapping[str, str] = MappingProxyType({}),
) -> ScannedResource | None:
    """Return the index data. ``targets``: ``Type/id`` by ``fullUrl`` of the Bundle."""
    kind, identity = head.resourceType, head.id
    if not ID.fullmatch(identity):
        return None
    node: Node = {name: value for name in _LOOKED_AT.get(kind, ()) if (value := getattr(head, name)) is not None}
    patients = [identity] if kind == PATIENT else []
    for path in OWNERS.get(kind, ()):
        patients += _ids(values(node, path), PATIENT, targets)
    codes = list(_codes(node, CODES[kind], targets)) if kind in CODES else []
    return ScannedResource(
        kind, identity, tuple(dict.fromkeys(patients)), start, length, _days(kind, node), tuple(codes), bundle, url
    )


def _ids(found: Iterable[object], wanted: str, targets: Mapping[str, str]) -> Iterator[str]:
    """Yield the ids of resources of one type that References name."""
    for value in found:
        reference = value.get("reference") if isinstance(value, dict) else None
        if isinstance(reference, str):
            match = LITERAL.fullmatch(targets.get(reference, reference))
            if match and match[1] == wanted:
                yield match[2]


def _days(kind: str, node: Node) -> DayRange | None:
    if kind not in CODES or kind not in DATES:
        return None
    return next((days for value in values(node, DATES[kind][0]) if (days := days_of(value)) is not None), None)


def _codes(node: Node, where: CodeElements, targets: Mapping[str, str]) -> Iterator[str]:
    for value in values(node, where.path):
        for system, code in codings(value):
            yield code_key(system, code)
    if where.reference is not None:
        for medication in _ids(values(node, where.reference), "Medication", targets):
            yield code_key(REFERS, medication)
