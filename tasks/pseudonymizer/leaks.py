"""Find identifying values that came back, and dates that stayed while others of the same line moved.

docs/decisions/12-pseudonymizer-finds-leaks.md. The values of persons are searched for as whole strings in the bytes of
the answer. Only if one is found, the answer is walked for its path. No output has a value.

A date has moved if the answer has another day in its place. If only some dates of a line moved, the rules forgot the
paths of the others. Birth dates do not count: rules may only change their precision. Dates are compared in the first
100 lines of a file, then in one of ten, because rules treat a path alike in all lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from tasks.shared.fhir.persons import PERSONS, Identifying, Kind, identifying

SHORT: Final = 4
"""A value with fewer characters may occur anywhere, so it counts only at its own path."""

ATTACHMENT: Final = "attachment data"

_NEVER: Final = frozenset({"Provenance", "Organization", "Location", "Medication", "Device"})
_FIRST: Final = 100
_ONE_IN: Final = 10
_DAY: Final = re.compile(rb'-(\d\d-\d\d)(?=["T])(?<!"birthDate":"\d{4}-\d\d-\d\d)(?<!"birthDate": "\d{4}-\d\d-\d\d)')
"""Month and day of a date in JSON text; searched for from the hyphen, which is rare."""
_TEXT_DAY: Final = re.compile(r"(\d{4}-\d{2}-\d{2})(?:T|\Z)")
_ASIDE: Final = frozenset({"birthDate", "lastUpdated"})
_DATA: Final = re.compile(rb'"data"\s*:\s*("[A-Za-z0-9+/=\\]{24,}")')


class Leak(NamedTuple):
    """Path and kind of a value that came back, and the system of an identifier. The value itself is left out."""

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
    """Return the leaks of one line: identifying values and attachments that came back unchanged.

    ``values`` are those of the line that was ``sent``. ``answer`` are the resources that came back, and ``text`` is the
    whole answer: it is searched first, because most answers have no leak and need not be walked.
    """
    if b"\\" in text and b"\\u" in text:  # the service escapes more characters than it must
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


def is_sampled(line: int) -> bool:
    """Return whether the dates of this line of a file are looked at."""
    return line <= _FIRST or line % _ONE_IN == 0


def dates_of(
    texts: tuple[bytes, bytes], sent: Sequence[Raw | bytes | None], answer: Sequence[Raw | bytes | None]
) -> tuple[set[str], set[str]]:
    """Compare the dates of a line with those of its answer, without birth dates.

    Returns ``{"moved"}`` or, for a line with a patient, ``{"unmoved"}`` (empty for a line without dates), and the paths
    whose dates stayed while other dates of the line moved. ``texts`` are the line and its answer; ``sent`` and
    ``answer`` are their resources, in the same order.
    """
    before, after = map(_DAY.findall, texts)
    if before == after:
        return {"unmoved"} if before and b"Patient" in texts[0] else set(), set()
    stayed: set[str] = set()
    moved = False
    for old, new in zip(sent, answer, strict=True):
        if old is not None and new is not None:
            days, now = _DAY.findall(memoryview(old)), _DAY.findall(memoryview(new))
            if days and len(days) == len(now) and not set(days) & set(now):
                moved = True  # all of them: the resource need not be walked
                continue
            for path, was, is_now in _dates(msgspec.json.decode(old), msgspec.json.decode(new)):
                moved = moved or was != is_now
                if was == is_now:
                    stayed.add(path)
    return {"moved"} if before else set(), stayed if moved else set()


def _dates(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (path, day before, day after) of each date of a resource; none of a Provenance."""
    kind = str(old.get("resourceType"))
    return iter(()) if kind == "Provenance" else _pairs(old, new, kind)


def _pairs(old: Any, new: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield (path, day before, day after) of each text that is a day on both sides."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() & new.keys() - _ASIDE:
            yield from _pairs(old[key], new[key], f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for before, after in zip(old, new, strict=True):
            yield from _pairs(before, after, path)
    elif isinstance(old, str) and isinstance(new, str):
        was, is_now = _TEXT_DAY.match(old), _TEXT_DAY.match(new)
        if was and is_now:
            yield path, was[1], is_now[1]
