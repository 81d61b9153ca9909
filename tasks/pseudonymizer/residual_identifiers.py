"""Identifiers of persons that come out of the pseudonymization as they went in (document 3 §4).

Names, addresses, numbers and pictures of Patient, RelatedPerson, Person and Practitioner, wherever such a resource
stands: in an entry, contained, in a Bundle or Parameters inside; and an ``identifier.value`` of theirs wherever else an
identifier has it. Theirs are those in their own ``identifier``, and not what stands below an assigner, an issuer or an
organization. Compared is within one line, value by value, so a name of which half is gone is found, and a number also
when its person went in another part of a Bundle that was split. Counted is by path, in lines; a value is kept nowhere,
and a path is made of names that FHIR could have.

Never counted: Provenance, because the routing of the flattening needs what is in it, and what identifies no person
(Organization, Location, Medication, Device).
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tasks.pseudonymizer.answer_check import HOLDERS, Members, ResourceSummary
from tasks.shared.fhir.r4 import ELEMENTS, IDENTIFYING, NO_PERSONS, PERSONS
from tasks.shared.fhir.reading import UNREADABLE

_ENVELOPES: Final = frozenset({"Bundle", "Parameters"})


def _places(*elements: str) -> Iterator[str]:
    """Return what identifies in elements of a person, and what a profile says of parts of a name or an address
    (ISO 21090) in extensions beside them."""
    for element in elements:
        parts = IDENTIFYING[ELEMENTS[element]]
        yield from (f"{element}.{part}" for part in parts)
        if element in ("name", "address"):
            yield from (f"{element}._{part}.extension.valueString" for part in parts)


PLACES: Final = (
    *_places("name", "telecom", "address", "photo"),
    *(f"contact.{place}" for place in _places("name", "telecom", "address")),
)
"""Elements of a person whose values identify."""

IDENTIFIER: Final = "identifier.value"

_NUMBERS: Final = (
    ("identifier",), ("qualification", "identifier"),
    ("patient", "identifier"), ("link", "other", "identifier"), ("link", "target", "identifier"),
)  # fmt: skip
"""Where numbers of persons stand in a person. All others there are those of organizations."""

_INSIDE: Final = {
    element: [(place, keys) for place in PLACES for first, *keys in [place.split(".")] if first == element]
    for element in sorted({place.partition(".")[0] for place in PLACES})
}
"""Of each element of a person the places in it, and the keys that lead there from it."""
_READ: Final = frozenset(_INSIDE) | {"identifier"}
_PERSON: Final = re.compile(rb'"resourceType"\s*:\s*"(?:%b)"' % "|".join(sorted(PERSONS)).encode())
_HELD: Final = 16 << 20
_OVERHEAD: Final = 700
"""Of a number that is held: bytes beside its characters, measured."""
_FEW: Final = 8
_DEEP: Final = 8
_NAME: Final = re.compile(r"[A-Za-z]{1,64}")
_VALUE: Final = re.compile(rb'"value"\s*:\s*("(?:[^"\\]|\\.)+")')
_ESCAPED: Final = re.compile(rb'"value"\s*:\s*"[^"\\]*\\u00[2-7]|"[A-Za-z]*\\u00[4-7][0-9A-Fa-f][^"]*"\s*:')
"""A value, or a key, spelled in another way than it must be: then each identifier is read to be compared."""

FOUND: Final = "residual "
KEPT: Final = "kept "
"""How the keys of counts begin, before the path."""
_SHOWN: Final = 20

_any: Final = msgspec.json.Decoder(float_hook=str)
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Residuals:
    """Looks for what stays. ``kept`` are systems of identifiers, and paths, that are kept on purpose
    (``services.pseudonymizer.kept_identifiers``): they are counted, too, but apart."""

    kept: frozenset[str] = field(default_factory=frozenset)

    def paths(
        self, sent: ResourceSummary, received: ResourceSummary, elsewhere: PersonNumbers | None = None
    ) -> set[str]:
        """Return the paths at which original identifiers of persons are unchanged, as keys for ``paths_of``.

        ``elsewhere`` are the numbers in the Bundle of which this is a part. Raises what msgspec raises for a value that
        cannot be read.
        """
        originals = _Originals(sent, elsewhere)
        found: set[str] = set()
        if not originals:
            return found
        left = originals.count_in(received.text)
        for kind, resource in received.all_members():
            here = originals.count_in(_encode(resource)) if left else 0
            if left != math.inf:
                left -= here
            if here or kind in HOLDERS or "contained" in resource:
                found.update(self._of(kind, resource, originals, everywhere=bool(here)))
        return found

    def _of(self, kind: str, resource: Members, originals: _Originals, *, everywhere: bool) -> Iterator[str]:
        if kind in NO_PERSONS:
            return
        whole = {name: _any.decode(raw) for name, raw in resource.items() if everywhere or _identifies(kind, name)}
        for path, person in _persons(whole, _segment(kind)):
            for place, texts in _identifying(person):
                if not originals.values[place].isdisjoint(texts):
                    yield self._named(f"{path}.{place}", set())
            for identifier in objects_in(person.get("identifier")):
                yield from self._number(f"{path}.{IDENTIFIER}", identifier, originals)
        if everywhere:
            for path, identifier in _identifiers(whole, (_segment(kind),)):
                yield from self._number(f"{path}.value", identifier, originals)

    def _number(self, path: str, identifier: Mapping[str, Any], originals: _Originals) -> Iterator[str]:
        value = identifier.get("value")
        if isinstance(value, str) and (systems := originals.systems_of(value)):
            yield self._named(path, systems)

    def _named(self, path: str, systems: set[str]) -> str:
        keeps = any(path == kept or path.startswith(f"{kept}.") for kept in self.kept)
        return (KEPT if keeps or (systems and self.kept.issuperset(systems)) else FOUND) + path


def paths_of(counts: Mapping[str, int], *, kept: bool = False) -> dict[str, int]:
    """Return the number of lines with a finding at each path, in the order of the paths."""
    head = KEPT if kept else FOUND
    return {key.removeprefix(head): counts[key] for key in sorted(counts) if key.startswith(head) and counts[key]}


def worded(counts: Mapping[str, int], *, kept: bool = False) -> dict[str, str]:
    """Return the first paths with their number of lines."""
    paths = paths_of(counts, kept=kept)
    said = {path: f"{count:,} lines" for path, count in [*paths.items()][:_SHOWN]}
    more = len(paths) - len(said)
    return said | ({f"and {more} more paths": ""} if more > 0 else {})


class PersonNumbers:
    """The numbers of persons, each with the systems with which it was sent (blank: with none).

    Kept for all parts of a Bundle it is bounded by ``limit`` bytes: ``full`` says that there were more.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.full = False
        self._systems: dict[str, set[str]] = {}
        self._left = limit
        self._spelled: list[bytes] | None = None

    def __bool__(self) -> bool:
        return bool(self._systems)

    def add(self, person: Mapping[str, Any]) -> None:
        """Take in the numbers of a person."""
        for keys in _NUMBERS:
            for identifier in values_at(person, keys) if keys[0] in person else ():
                if not isinstance(identifier, dict):
                    continue
                value, system = identifier.get("value"), identifier.get("system")
                if not isinstance(value, str) or not value.strip():
                    continue
                if value in self._systems or self._fits(value):
                    self._systems.setdefault(value, set()).add(system if isinstance(system, str) else "")

    def systems_of(self, value: str) -> set[str]:
        """Return the systems with which a value was sent; empty if it belongs to none of the persons."""
        return self._systems.get(value, set())

    def count_in(self, text: bytes) -> float:
        """Return how often the identifiers can occur in a text: at least 1 if one occurs, infinity if escapes leave it
        open."""
        if not self._systems:
            return 0
        # One byte is found ten times as fast as several, and most texts have none.
        escapes = b"\\" in text
        if escapes and b"\\u00" in text and _ESCAPED.search(text):
            return math.inf
        if len(self._systems) > _FEW:
            count = sum(map(self._systems.__contains__, map(_unquoted, _VALUE.findall(text))))
        else:
            if self._spelled is None:
                self._spelled = [spelling for value in self._systems for spelling in _spellings(value)]
            count = sum(map(text.count, self._spelled))
        return math.inf if count and escapes else count

    def _fits(self, value: str) -> bool:
        if self._left is None:
            return True
        self._left -= len(value) + _OVERHEAD
        self.full = self.full or self._left < 0
        return self._left >= 0


def numbers_in(entries: Iterable[bytes]) -> PersonNumbers:
    """Return the identifiers of the persons in the entries of a Bundle, which are read one by one."""
    numbers = PersonNumbers(_HELD)
    for entry in entries:
        if _PERSON.search(entry):
            try:
                whole = _any.decode(entry)
            except UNREADABLE:
                continue  # refused in its own request
            for _, person in _persons({"entry": [whole]}, ""):
                numbers.add(person)
    return numbers


class _Originals:
    """The identifying values of the persons of a request, and the identifiers of the whole Bundle."""

    def __init__(self, sent: ResourceSummary, elsewhere: PersonNumbers | None) -> None:
        own = PersonNumbers()
        self.values: defaultdict[str, set[str]] = defaultdict(set)
        self._numbers = (own, elsewhere) if elsewhere else (own,)
        for raw in sent.holders:
            for _, person in _persons(_any.decode(raw), ""):
                own.add(person)
                for place, texts in _identifying(person):
                    self.values[place].update(texts)

    def __bool__(self) -> bool:
        return any(self.values.values()) or any(self._numbers)

    def count_in(self, text: bytes) -> float:
        """Return how often identifiers of these persons can occur in a text."""
        return sum(numbers.count_in(text) for numbers in self._numbers)

    def systems_of(self, value: str) -> set[str]:
        """Return the systems with which the value of an identifier was sent."""
        return set().union(*(numbers.systems_of(value) for numbers in self._numbers))


def _unquoted(text: bytes) -> str:
    """Return a JSON string as text, or an empty text if it is invalid, in which case the answer is unreadable too."""
    if b"\\" not in text:
        return text[1:-1].decode()
    try:
        return str(_any.decode(text))
    except UNREADABLE:
        return ""


def _spellings(value: str) -> set[bytes]:
    """Return the forms in which services write a text in JSON: unchanged, in ASCII, with hexadecimal digits of either
    case, and with escaped slashes."""
    plain, ascii_ = json.dumps(value, ensure_ascii=False), json.dumps(value)
    upper = re.sub(r"\\u[0-9a-f]{4}", lambda found: "\\u" + found[0][2:].upper(), ascii_)
    texts = {plain, ascii_, upper}
    return {text.encode() for text in texts | {text.replace("/", "\\/") for text in texts}}


def _persons(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path and the value of each person in a resource."""
    if not isinstance(value, dict) or depth > _DEEP:
        return
    if isinstance(kind := value.get("resourceType"), str) and kind in PERSONS:
        yield path, value
    inside: list[tuple[str, Any]] = [("contained", one) for one in objects_in(value.get("contained"))]
    inside += [("entry", one.get("resource")) for one in objects_in(value.get("entry"))]
    for name in ("parameter", "part"):
        for one in objects_in(value.get(name)):
            inside += [(name, one.get("resource")), (name, {"part": one.get("part")})]
    for name, one in inside:
        kind = one.get("resourceType") if isinstance(one, dict) else None
        yield from _persons(one, f"{path}.{name}.{_segment(kind)}" if kind else path, depth + 1)


def _identifies(kind: str, name: str) -> bool:
    """Return whether an element must be read even if the text contains no identifier of a person."""
    if name in ("resourceType", "contained") or kind in _ENVELOPES:
        return True
    return kind in PERSONS and name in _READ


def _identifying(person: Mapping[str, Any]) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield the texts that identify a person, by place."""
    for element in person.keys() & _INSIDE.keys():
        for place, keys in _INSIDE[element]:
            yield place, _texts(person[element], keys)


def _texts(value: Any, keys: Sequence[str]) -> Iterator[str]:
    """Yield the texts at a path, except blank ones."""
    return (one for one in values_at(value, keys) if isinstance(one, str) and one.strip())


def values_at(value: Any, keys: Sequence[str]) -> Iterator[Any]:
    """Yield the values at a path, through lists; ``None`` for a missing value."""
    if isinstance(value, list):
        for one in value:
            yield from values_at(one, keys)
    elif not keys:
        yield value
    elif isinstance(value, dict):
        yield from values_at(value.get(keys[0]), keys[1:])


def _identifiers(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path and the value of each Identifier, whatever the name of its element."""
    if isinstance(value, list):
        for one in value:
            yield from _identifiers(one, path)
    elif isinstance(value, dict):
        if isinstance(kind := value.get("resourceType"), str) and kind in NO_PERSONS:
            return
        name = path[-1] if path else ""
        if name.lower().endswith("identifier") or name == "requisition":
            yield ".".join(path if len(path) <= _DEEP else (*path[: _DEEP - 1], "…", name)), value
        for key, one in value.items():
            if isinstance(one, (dict, list)):
                yield from _identifiers(one, (*path, _segment(key)))


def _segment(name: Any) -> str:
    """Return a name that FHIR could have, or a placeholder, because other names may be data."""
    return name if isinstance(name, str) and _NAME.fullmatch(name) else "…"


def objects_in(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list, or the only one; none of anything else."""
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]
