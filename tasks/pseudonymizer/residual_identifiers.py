"""Identifiers of persons that come out of the pseudonymization as they went in (document 3 §4).

Names, addresses, numbers and pictures of Patient, RelatedPerson, Person and Practitioner, wherever such a resource
stands: in an entry, contained, in a Bundle or Parameters inside; and an ``identifier.value`` of theirs wherever else an
identifier has it. Theirs are those in their own ``identifier``, and not what stands below an assigner, an issuer or an
organization. Compared is within one line, value by value, so a name of which half is gone is found, and a number also
when its person went in another part of a Bundle that was split. Counted is by path: of how many patients a value was; a
value is kept nowhere, and a path is made of names that FHIR could have.

Never counted: Provenance, because the routing of the flattening needs what is in it, and what identifies no person
(Organization, Location, Medication, Device).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tasks.pseudonymizer.affected import FOUND, KEPT
from tasks.pseudonymizer.answer_check import HOLDERS, Members, ResourceSummary
from tasks.shared.fhir.r4 import ELEMENTS, IDENTIFYING, NO_PERSONS, PERSONS
from tasks.shared.fhir.reading import UNREADABLE
from tasks.shared.fhir.references import id_named_by, objects_in

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

_NOBODY: Final[Mapping[int, set[str]]] = {}
_any: Final = msgspec.json.Decoder(float_hook=str)
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Residuals:
    """Looks for what stays. ``kept`` are systems of identifiers, and paths, that are kept on purpose
    (``services.pseudonymizer.kept_identifiers``): they are counted, too, but apart."""

    kept: frozenset[str] = field(default_factory=frozenset)

    def owners(
        self, sent: ResourceSummary, received: ResourceSummary, elsewhere: PersonNumbers | None = None
    ) -> dict[str, set[int]]:
        """Return the persons whose original identifiers are unchanged, by path, as hashes of patients.

        Where a Bundle has no Patient they are those of the persons themselves. What was ``received`` is read to its
        end, one resource at a time. The keys are those of ``paths_of``. ``elsewhere`` are the numbers in the Bundle of
        which this is a part. Raises ``OutlineError``, and what msgspec raises for a value that cannot be read.
        """
        originals = _Originals(sent, elsewhere)
        anybody, left = bool(originals), originals.count_in(received.text)
        found: defaultdict[str, set[int]] = defaultdict(set)
        # A Bundle's own elements come first.
        for index, (kind, resource) in enumerate(received.all_members(), -1 if sent.is_bundle else 0):
            if not anybody:
                continue
            here = originals.count_in(_encode(resource)) if left else 0
            if left != math.inf:
                left -= here
            if here or kind in HOLDERS or "contained" in resource:
                for path, owner in self._of(kind, resource, originals, index, everywhere=bool(here)):
                    found[path].add(owner)
        return dict(found)

    def _of(
        self, kind: str, resource: Members, originals: _Originals, index: int, *, everywhere: bool
    ) -> Iterator[tuple[str, int]]:
        if kind in NO_PERSONS:
            return
        whole = {name: _any.decode(raw) for name, raw in resource.items() if everywhere or _identifies(kind, name)}
        for path, person in _persons(whole, _segment(kind)):
            for place, texts in _identifying(person):
                known = originals.values[place]
                for text in texts:
                    if text in known:
                        yield self._named(f"{path}.{place}", ()), originals.owner(known[text], index)
            for identifier in objects_in(person.get("identifier")):
                yield from self._number(f"{path}.{IDENTIFIER}", identifier, originals, index)
        if everywhere:
            for path, identifier in _identifiers(whole, (_segment(kind),)):
                yield from self._number(f"{path}.value", identifier, originals, index)

    def _number(
        self, path: str, identifier: Mapping[str, Any], originals: _Originals, index: int
    ) -> Iterator[tuple[str, int]]:
        if owners := originals.of(identifier):
            yield self._named(path, originals.systems(owners, index)), originals.owner(owners, index)

    def _named(self, path: str, systems: Collection[str]) -> str:
        keeps = any(path == kept or path.startswith(f"{kept}.") for kept in self.kept)
        return (KEPT if keeps or (systems and self.kept.issuperset(systems)) else FOUND) + path


class PersonNumbers:
    """The numbers of persons: of each whose it is, and with which systems it was sent (blank: with none).

    Kept for all parts of a Bundle it is bounded by ``limit`` bytes: ``full`` says that there were more.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.patients: dict[int, None] = {}
        self.full = False
        self._systems: dict[str, dict[int, set[str]]] = {}
        self._left = limit
        self._spelled: list[bytes] | None = None

    def __bool__(self) -> bool:
        return bool(self._systems)

    def add(self, path: str, person: Mapping[str, Any]) -> int:
        """Take in the numbers of a person; whose they are."""
        owner, is_patient = _owner(path, person)
        if is_patient and (self._left is None or len(self.patients) < _HELD // _OVERHEAD):
            self.patients[owner] = None
        for keys in _NUMBERS:
            for identifier in values_at(person, keys) if keys[0] in person else ():
                if not isinstance(identifier, dict):
                    continue
                value, system = identifier.get("value"), identifier.get("system")
                if not isinstance(value, str) or not value.strip():
                    continue
                if owner in self._systems.get(value, _NOBODY) or self._fits(value):
                    system = system if isinstance(system, str) else ""
                    self._systems.setdefault(value, {}).setdefault(owner, set()).add(system)
        return owner

    def of(self, value: str) -> Mapping[int, set[str]]:
        """Return the systems with which a value was sent, by its owner; empty if it belongs to none of them."""
        return self._systems.get(value, _NOBODY)

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
            for path, person in _persons({"entry": [whole]}, ""):
                numbers.add(path, person)
    return numbers


class _Originals:
    """The identifying values of the persons of a request with their owners, and the identifiers of the whole Bundle."""

    def __init__(self, sent: ResourceSummary, elsewhere: PersonNumbers | None) -> None:
        own = PersonNumbers()
        self.values: defaultdict[str, dict[str, set[int]]] = defaultdict(dict)
        self._numbers = (own, elsewhere) if elsewhere else (own,)
        self._at: dict[int, int] = {}
        for index, raw in sent.holders.items():
            for path, person in _persons(_any.decode(raw), ""):
                owner = own.add(path, person)
                self._at.setdefault(index, owner)
                for place, texts in _identifying(person):
                    for one in texts:
                        self.values[place].setdefault(one, set()).add(owner)
        patients = elsewhere.patients if elsewhere is not None and elsewhere.patients else own.patients
        self._patients = own.patients.keys() | patients.keys() if patients else set()
        self._first = next(iter(patients), 0)

    def __bool__(self) -> bool:
        return bool(self.values) or any(self._numbers)

    def count_in(self, text: bytes) -> float:
        """Return how often identifiers of these persons can occur in a text."""
        return sum(numbers.count_in(text) for numbers in self._numbers)

    def of(self, identifier: Mapping[str, Any]) -> Mapping[int, set[str]]:
        """Return the systems with which the value of an identifier was sent, by its owner."""
        value = identifier.get("value")
        if not isinstance(value, str):
            return _NOBODY
        own, *others = (numbers.of(value) for numbers in self._numbers)
        return {**others[0], **own} if others else own

    def systems(self, owners: Mapping[int, set[str]], index: int) -> set[str]:
        """Under which systems a number was sent that was found in the resource at an index: by the person that was sent
        there, if it had it; else by anybody."""
        here = owners.get(self._at.get(index, 0))
        return here if here is not None else set().union(*owners.values())

    def owner(self, owners: Collection[int], index: int) -> int:
        """Whose a value is that was found in the resource at an index: of the person that was sent there, if it had it.

        A number of patients that is too small harms nobody: of many one counts, and what is of no Patient in a Bundle
        with some is its first one's.
        """
        here = self._at.get(index)
        one = here if here in owners and here is not None else min(owners)
        return one if one in self._patients or not self._patients else self._first


def _owner(path: str, person: Mapping[str, Any]) -> tuple[int, bool]:
    """Whose is what a person has, and whether that is a Patient with an id: a relative's is the patient's, and who has
    none of his own (contained) is known by a number or by all that identifies him."""
    kind, own = person["resourceType"], person.get("id")
    if kind == "RelatedPerson" and isinstance(patient := person.get("patient"), dict):
        reference = patient.get("reference")
        target = id_named_by(reference.encode()) if isinstance(reference, str) else None
        if target:
            return _hash("Patient", target), False
    if isinstance(own, str) and ".contained." not in path:
        return _hash(kind, own), kind == "Patient"
    numbers = sorted(one["value"] for one in objects_in(person.get("identifier")) if isinstance(one.get("value"), str))
    texts = sorted((place, text) for place, found in _identifying(person) for text in found)
    return _hash(kind, *(numbers[:1] or texts)), False


def _hash(*what: object) -> int:
    """Return a hash that is the same in every process."""
    return int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=8).digest())


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
