"""Identifiers of persons that come out of the pseudonymization as they went in (document 3 §4).

Names, addresses, numbers and pictures of Patient, RelatedPerson, Person and Practitioner, contained ones too; and an
``identifier.value`` of theirs wherever else an identifier has it. Compared is within one request, value by value, so a
name of which only half is gone is found. Counted are resources by path; a value is kept nowhere.

Never counted: Provenance, because the routing of the flattening needs what is in it, and what identifies no person
(Organization, Location, Medication, Device).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tasks.pseudonymizer.answer_check import Members

PERSONS: Final = frozenset({"Patient", "RelatedPerson", "Person", "Practitioner"})
NO_PERSONS: Final = frozenset({"Provenance", "Organization", "Location", "Medication", "Device"})

PLACES: Final = (
    "name.family",
    "name.given",
    "name.text",
    "telecom.value",
    "address.line",
    "address.text",
    "photo.data",
    "photo.url",
    "contact.name.family",
    "contact.name.given",
    "contact.name.text",
    "contact.telecom.value",
    "contact.address.line",
    "contact.address.text",
)
"""Elements of a person whose values identify."""

IDENTIFIER: Final = "identifier.value"

_KEYS: Final = {place: tuple(place.split(".")) for place in PLACES}
_ELEMENTS: Final = ("name", "telecom", "address", "photo", "contact", "identifier")
_FEW: Final = 8
_PLAIN: Final = re.compile(r"[A-Za-z0-9 ._:/-]+")
"""Texts that services spell alike, unless they escape what needs no escape."""
_ESCAPED: Final = re.compile(rb"\\(?:u00[2-7]|/)")
_VALUE: Final = re.compile(rb'"value"\s*:\s*"([^"]+)"')

_FOUND: Final = "residual "
_KEPT: Final = "kept "


class _Person(msgspec.Struct, rename="camel", gc=False):
    resource_type: str | None = None
    name: msgspec.Raw = msgspec.Raw()
    telecom: msgspec.Raw = msgspec.Raw()
    address: msgspec.Raw = msgspec.Raw()
    photo: msgspec.Raw = msgspec.Raw()
    contact: msgspec.Raw = msgspec.Raw()
    identifier: msgspec.Raw = msgspec.Raw()
    contained: msgspec.Raw = msgspec.Raw()


class _Entry(msgspec.Struct, gc=False):
    resource: _Person | None = None


class _Bundle(msgspec.Struct):
    entry: list[_Entry] | None = None


_bundle: Final = msgspec.json.Decoder(_Bundle)
_person: Final = msgspec.json.Decoder(_Person)


@dataclass(frozen=True)
class Residuals:
    """Looks for what stays. ``kept`` are systems of identifiers, and paths, that are kept on purpose
    (``services.pseudonymizer.kept_identifiers``): they are counted, too, but apart."""

    kept: frozenset[str] = field(default_factory=frozenset)

    def count(self, sent: bytes, received: bytes, resources: Iterable[Members]) -> Counter[str]:
        """Resources that hold an identifier which one of those that were ``sent`` had, by path.

        ``resources`` are those in what was ``received``; they are read to their end, one at a time. The keys are those
        of ``paths_of``.
        """
        originals = _Originals(_persons_in(sent))
        everywhere = originals.may_be_in(received)
        found: Counter[str] = Counter()
        for resource in resources:
            if everywhere or (originals and (_type(resource) in PERSONS or "contained" in resource)):
                found.update(self._of(resource, originals, everywhere=everywhere))
        return found

    def _of(self, resource: Members, originals: _Originals, *, everywhere: bool) -> set[str]:
        kind = _type(resource)
        paths: set[str] = set()
        if kind in NO_PERSONS:
            return paths
        if kind in PERSONS:
            elements = {name: msgspec.json.decode(resource[name]) for name in _ELEMENTS if name in resource}
            paths.update(self._of_person(kind, elements, originals))
        for inside in _contained(resource):
            if _is_person(inside):
                paths.update(self._of_person(f"{kind}.contained.{inside['resourceType']}", inside, originals))
        if everywhere:
            paths.update(self._elsewhere(kind, resource, originals))
        return paths

    def _of_person(self, path: str, person: Mapping[str, Any], originals: _Originals) -> Iterator[str]:
        for place, keys in _KEYS.items():
            if not originals.values[place].isdisjoint(_texts(person, keys)):
                yield self._named(f"{path}.{place}", None)
        for identifier in _objects(person.get("identifier")):
            if identifier.get("value") in originals.identifiers:
                yield self._named(f"{path}.{IDENTIFIER}", identifier.get("system"))

    def _elsewhere(self, kind: str, resource: Members, originals: _Originals) -> Iterator[str]:
        """An identifier of a person in another resource, or in another element of a person."""
        for name, raw in resource.items():
            if (kind in PERSONS and name in _ELEMENTS) or not (name == "identifier" or originals.may_be_in(bytes(raw))):
                continue
            for path, identifier in _identifiers(msgspec.json.decode(raw), name):
                if identifier.get("value") in originals.identifiers:
                    yield self._named(f"{kind}.{path}.value", identifier.get("system"))

    def _named(self, path: str, system: object) -> str:
        keeps = system in self.kept or any(path == kept or path.startswith(f"{kept}.") for kept in self.kept)
        return (_KEPT if keeps else _FOUND) + path


def paths_of(counts: Mapping[str, int], *, kept: bool = False) -> dict[str, int]:
    """Of counts among others: how many resources have something at a path, in the order of the paths."""
    head = _KEPT if kept else _FOUND
    return {key.removeprefix(head): counts[key] for key in sorted(counts) if key.startswith(head) and counts[key]}


def worded(paths: Mapping[str, int], say: Any) -> str:
    """The paths for a person; ``say`` words a count of people."""
    return ", ".join(f"{path} ({say(count)} {_unit(path)})" for path, count in paths.items())


def _unit(path: str) -> str:
    return "patients" if path.startswith("Patient.") else f"resources {path.partition('.')[0]}"


class _Originals:
    """What identifies the persons of a request."""

    def __init__(self, persons: Iterable[Mapping[str, Any]]) -> None:
        self.values: defaultdict[str, set[str]] = defaultdict(set)
        self.identifiers: set[str] = set()
        for person in persons:
            for place, keys in _KEYS.items():
                if texts := set(_texts(person.get(keys[0]), keys[1:])):
                    self.values[place] |= texts
            self.identifiers.update(_texts(person.get("identifier"), ("value",)))
        self._spelled = [b'"%b"' % one.encode() for one in self.identifiers]
        self._odd = not all(map(_PLAIN.fullmatch, self.identifiers))

    def __bool__(self) -> bool:
        return bool(self.values or self.identifiers)

    def may_be_in(self, text: bytes) -> bool:
        """Whether an identifier of theirs may be in a text: cheap, and never no when one is."""
        if not self.identifiers:
            return False
        if self._odd or _ESCAPED.search(text):
            return True
        if len(self._spelled) <= _FEW:
            return any(one in text for one in self._spelled)
        return not self.identifiers.isdisjoint(map(bytes.decode, _VALUE.findall(text)))


def _persons_in(text: bytes) -> Iterator[dict[str, Any]]:
    """Every person of a request, contained ones too: the elements that identify."""
    try:
        resources = [entry.resource for entry in _bundle.decode(text).entry or () if entry.resource is not None]
    except msgspec.ValidationError:  # no Bundle: an entry of another shape
        resources = []
    for one in resources or [_person.decode(text)]:
        if one.resource_type in PERSONS:
            yield {name: msgspec.json.decode(raw) for name in _ELEMENTS if len(raw := getattr(one, name))}
        if len(one.contained):
            yield from (each for each in _objects(msgspec.json.decode(one.contained)) if _is_person(each))


def _is_person(resource: Mapping[str, Any]) -> bool:
    return resource.get("resourceType") in PERSONS


def _type(resource: Members) -> str:
    return bytes(resource["resourceType"]).decode().strip('"') if "resourceType" in resource else ""


def _contained(resource: Members) -> list[dict[str, Any]]:
    return _objects(msgspec.json.decode(resource["contained"])) if "contained" in resource else []


def _objects(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value]
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _texts(value: Any, keys: Collection[str]) -> Iterator[str]:
    """The texts at a path, through lists; blank ones identify nobody."""
    if isinstance(value, list):
        for one in value:
            yield from _texts(one, keys)
    elif keys and isinstance(value, dict):
        first, *rest = keys
        yield from _texts(value.get(first), rest)
    elif not keys and isinstance(value, str) and value.strip():
        yield value


def _identifiers(value: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every identifier in a value: its path, and itself."""
    if isinstance(value, list):
        for one in value:
            yield from _identifiers(one, path)
    elif isinstance(value, dict):
        if path.rpartition(".")[2] == "identifier":
            yield path, value
        for name, one in value.items():
            yield from _identifiers(one, f"{path}.{name}")
