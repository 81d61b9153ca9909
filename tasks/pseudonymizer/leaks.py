"""Identifying values of a line that came back in its answer (``design.md``, D12; document 3 §4, "Leaks").

The values of persons are searched for as whole strings in the bytes of the answer; only where one is found is the
answer walked, to name the path. Values are named nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from tasks.shared.fhir.persons import Identifying, Kind, identifying

SHORT: Final = 4
"""Fewer characters than these are found everywhere: such a value counts at its own path alone."""

ATTACHMENT: Final = "attachment data"

_NEVER: Final = frozenset({"Provenance", "Organization", "Location", "Medication", "Device"})
_DATA: Final = re.compile(rb'"data"\s*:\s*("[A-Za-z0-9+/=\\]{24,}")')
_PERSON: Final = re.compile(rb'"resourceType"\s*:\s*"(?:Patient|RelatedPerson|Person|Practitioner)"')
_SKIPPED_KINDS: Final = frozenset({Kind.PLACE})


class Leak(NamedTuple):
    """A value that came back, without the value: where it stands now, what it is, and the system of an identifier."""

    path: str
    kind: str
    system: str = ""


def values_in(resources: Iterable[bytes | Raw | None]) -> tuple[Identifying, ...]:
    """Return the identifying values of the persons among these resources, contained ones included."""
    found: list[Identifying] = []
    for raw in resources:
        if raw is not None and _PERSON.search(memoryview(raw)):
            found += (one for one in identifying(msgspec.json.decode(raw)) if one.kind not in _SKIPPED_KINDS)
    return tuple(found)


def leaks_of(
    values: tuple[Identifying, ...], sent: list[Raw | bytes | None], answer: list[Raw | bytes | None], text: bytes
) -> set[Leak]:
    """Return what of ``values`` and of the attachments in ``sent`` stands in the resources of an ``answer``, whose
    whole text is ``text``."""
    if b"\\u" in text:  # a serializer that escapes what it need not
        text = msgspec.json.encode(msgspec.json.decode(text))
    hits = {value.value: value for value in values if len(value.value) >= SHORT and _quoted(value.value) in text}
    short = {(value.path, value.value): value for value in values if len(value.value) < SHORT}
    data = _attachments(sent, text)
    if not hits and not data and not any(_quoted(value) in text for _, value in short):
        return set()
    found: set[Leak] = set()
    for raw in answer:
        if raw is None:
            continue
        resource = msgspec.json.decode(raw)
        kind = resource.get("resourceType")
        if kind in _NEVER:
            continue
        for path, key, value in _strings(resource, str(kind)):
            known = hits.get(value) or short.get((path, value))
            if known is not None:
                found.add(Leak(path, known.kind, known.system))
            elif key == "data" and value in data:
                found.add(Leak(path, ATTACHMENT))
    return found


def _attachments(sent: list[Raw | bytes | None], text: bytes) -> set[str]:
    """Return the Base64 content of sent attachments that stands in the answer."""
    found = set()
    for raw in sent:
        for match in _DATA.finditer(memoryview(raw)) if raw is not None else ():
            if match[1] in text:
                found.add(msgspec.json.decode(match[1]))
    return found


def _strings(node: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield (path without indexes, key, text) of every text below a node; a contained resource's path has its type."""
    for key, value in node.items():
        inner = f"{path}.{key}"
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, str):
                yield inner, key, item
            elif isinstance(item, dict):
                kind = item.get("resourceType")
                if kind in _NEVER:
                    continue
                yield from _strings(item, f"{inner}.{kind}" if isinstance(kind, str) else inner)


def _quoted(value: str) -> bytes:
    return msgspec.json.encode(value)
