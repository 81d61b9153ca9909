"""Identifying values of a line that came back in its answer (``design.md``, D12; document 3 §4, "Leaks").

The values of persons are searched for as whole strings in the bytes of the answer; only where one is found is the
answer walked, to name the path. Values are named nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from tasks.shared.fhir.persons import PERSONS, Identifying, Kind, identifying

SHORT: Final = 4
"""Fewer characters than these are found everywhere: such a value counts at its own path alone."""

ATTACHMENT: Final = "attachment data"

_NEVER: Final = frozenset({"Provenance", "Organization", "Location", "Medication", "Device"})
_DATA: Final = re.compile(rb'"data"\s*:\s*("[A-Za-z0-9+/=\\]{24,}")')


class Leak(NamedTuple):
    """A value that came back, without the value: where it stands now, what it is, and the system of an identifier."""

    path: str
    kind: str
    system: str = ""


def values_in(text: bytes, types: Sequence[str], resources: Sequence[bytes | Raw | None]) -> tuple[Identifying, ...]:
    """Return the identifying values of the persons among the resources of a line, contained ones included."""
    contained = b"contained" in text
    found: list[Identifying] = []
    for kind, raw in zip(types, resources, strict=True):
        if raw is not None and (kind in PERSONS or (contained and b"contained" in bytes(raw))):
            found += (one for one in identifying(msgspec.json.decode(raw)) if one.kind is not Kind.PLACE)
    return tuple(found)


def leaks_of(
    values: tuple[Identifying, ...], sent: bytes, answer: Sequence[Raw | bytes | None], text: bytes
) -> set[Leak]:
    """Return what of ``values`` and of the attachments in what was ``sent`` stands in the resources of an ``answer``,
    whose whole text is ``text``."""
    if b"\\" in text and b"\\u" in text:  # a serializer that escapes what it need not
        text = msgspec.json.encode(msgspec.json.decode(text))
    hits = {value.value: value for value in values if len(value.value) >= SHORT and _quoted(value.value) in text}
    short = {(value.path, value.value): value for value in values if len(value.value) < SHORT}
    data = {msgspec.json.decode(one) for one in _DATA.findall(sent) if one in text} if b'"data' in sent else set()
    if not hits and not data and not any(_quoted(value) in text for _, value in short):
        return set()
    found: set[Leak] = set()
    for raw in answer:
        resource = msgspec.json.decode(raw) if raw is not None else {}
        kind = resource.get("resourceType")
        for path, key, value in _strings(resource, str(kind)) if kind not in _NEVER else ():
            known = hits.get(value) or short.get((path, value))
            if known is not None:
                found.add(Leak(path, known.kind, known.system))
            elif key == "data" and value in data:
                found.add(Leak(path, ATTACHMENT))
    return found


def _strings(node: dict[str, Any], path: str) -> Iterator[tuple[str, str, str]]:
    """Yield (path without indexes, key, text) of every text below a node; a contained resource's path has its type."""
    for key, value in node.items():
        inner = f"{path}.{key}"
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, str):
                yield inner, key, item
            elif isinstance(item, dict):
                kind = item.get("resourceType")
                if kind not in _NEVER:
                    yield from _strings(item, f"{inner}.{kind}" if isinstance(kind, str) else inner)


def _quoted(value: str) -> bytes:
    return msgspec.json.encode(value)
