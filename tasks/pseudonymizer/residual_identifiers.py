"""Identifiers of persons that come out of the pseudonymization as they went in (document 3 §4).

Names, addresses, numbers and pictures of Patient, RelatedPerson, Person and Practitioner, wherever such a resource
stands: in an entry, contained, in a Bundle or Parameters inside; and an ``identifier.value`` of theirs wherever else an
identifier has it. Compared is within one request, value by value, so a name of which half is gone is found. Counted is
by path, at most once for each patient of a request; a value is kept nowhere, and a path is made of names that FHIR
could have.

Never counted: Provenance, because the routing of the flattening needs what is in it, and what identifies no person
(Organization, Location, Medication, Device).
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tasks.pseudonymizer.answer_check import Members, ResourceSummary

PERSONS: Final = frozenset({"Patient", "RelatedPerson", "Person", "Practitioner"})
NO_PERSONS: Final = frozenset({"Provenance", "Organization", "Location", "Medication", "Device"})
_ENVELOPES: Final = frozenset({"Bundle", "Parameters"})


def _with_extensions(*names: str) -> tuple[str, ...]:
    """Elements, and what a profile says of their parts (ISO 21090) in extensions beside them."""
    return (*names, *(f"_{name}.extension.valueString" for name in names))


_OF_PERSONS: Final = (
    *(f"name.{place}" for place in _with_extensions("family", "given", "text", "prefix", "suffix")),
    "telecom.value",
    *(f"address.{place}" for place in _with_extensions("line", "text")),
)
PLACES: Final = (
    *_OF_PERSONS,
    *(f"photo.{place}" for place in ("data", "url", "title", "hash")),
    *(f"contact.{place}" for place in _OF_PERSONS),
)
"""Elements of a person whose values identify."""

IDENTIFIER: Final = "identifier.value"

_KEYS: Final = {place: tuple(place.split(".")) for place in PLACES}
_ELEMENTS: Final = frozenset(keys[0] for keys in _KEYS.values()) | {"identifier"}
_FEW: Final = 8
_DEEP: Final = 8
_SAID: Final = 20
_NAME: Final = re.compile(r"[A-Za-z]{1,64}")
_VALUE: Final = re.compile(rb'"value"\s*:\s*"([^"\\]+)"')
_ESCAPED: Final = re.compile(rb'"value"\s*:\s*"[^"\\]*\\u00[2-7]|"[A-Za-z]*\\u00[4-7][0-9A-Fa-f][^"]*"\s*:')
"""A value, or a key, spelled in another way than it must be: then each identifier is read to be compared."""

_FOUND: Final = "residual "
_KEPT: Final = "kept "


class _Entry(msgspec.Struct, gc=False):
    resource: msgspec.Raw = msgspec.Raw()


class _Bundle(msgspec.Struct):
    entry: list[_Entry] | None = None


_bundle: Final = msgspec.json.Decoder(_Bundle)
_any: Final = msgspec.json.Decoder(float_hook=str)


@dataclass(frozen=True)
class Residuals:
    """Looks for what stays. ``kept`` are systems of identifiers, and paths, that are kept on purpose
    (``services.pseudonymizer.kept_identifiers``): they are counted, too, but apart."""

    kept: frozenset[str] = field(default_factory=frozenset)

    def count(self, sent: bytes, given: ResourceSummary, received: bytes, resources: Iterable[Members]) -> Counter[str]:
        """How many patients have an identifier left that one of the persons in what was ``sent`` had, by path.

        Where a request has no Patient it counts resources. ``given`` is the outline of what was sent; ``resources`` are
        those in what was ``received`` and are read to their end, one at a time. The keys are those of ``paths_of``.
        Raises what msgspec raises for a value that cannot be read.
        """
        originals = _Originals(_persons_in(sent, given))
        everywhere = originals.may_be_in(received)
        found: Counter[str] = Counter()
        for resource in resources:
            kind = _type(resource)
            if originals and (everywhere or kind in PERSONS or kind in _ENVELOPES or "contained" in resource):
                found.update(self._of(kind, resource, originals, everywhere=everywhere))
        patients = given.types.count("Patient") if given.is_bundle else 1
        return Counter({path: min(count, patients) if patients else count for path, count in found.items()})

    def _of(self, kind: str, resource: Members, originals: _Originals, *, everywhere: bool) -> set[str]:
        if kind in NO_PERSONS:
            return set()
        whole = {name: _any.decode(raw) for name, raw in resource.items() if everywhere or _identifies(kind, name)}
        paths: set[str] = set()
        for place, person in _persons(whole, _segment(kind)):
            paths.update(self._of_person(place, person, originals))
        if everywhere:
            for path, identifier in _identifiers(whole, (_segment(kind),)):
                if (systems := originals.of(identifier)) is not None:
                    paths.add(self._named(f"{path}.value", systems))
        return paths

    def _of_person(self, path: str, person: Mapping[str, Any], originals: _Originals) -> Iterator[str]:
        for place, keys in _KEYS.items():
            if not originals.values[place].isdisjoint(_texts(person, keys)):
                yield self._named(f"{path}.{place}", ())
        for identifier in _objects(person.get("identifier")):
            if (systems := originals.of(identifier)) is not None:
                yield self._named(f"{path}.{IDENTIFIER}", systems)

    def _named(self, path: str, systems: Collection[str]) -> str:
        keeps = any(path == kept or path.startswith(f"{kept}.") for kept in self.kept)
        return (_KEPT if keeps or not self.kept.isdisjoint(systems) else _FOUND) + path


def paths_of(counts: Mapping[str, int], *, kept: bool = False) -> dict[str, int]:
    """Of counts among others: how many patients have something at a path, in the order of the paths."""
    head = _KEPT if kept else _FOUND
    return {key.removeprefix(head): counts[key] for key in sorted(counts) if key.startswith(head) and counts[key]}


def worded(paths: Mapping[str, int], say: Callable[[str, int], str]) -> str:
    """The paths for a person; ``say`` words how many patients have something at a path."""
    said = [f"{path} ({say(path, count)} patients)" for path, count in [*paths.items()][:_SAID]]
    more = len(paths) - len(said)
    return ", ".join(said) + (f" and {more} more paths" if more > 0 else "")


class _Originals:
    """What identifies the persons of a request; of an identifier its value and the systems it was sent with."""

    def __init__(self, persons: Iterable[Mapping[str, Any]]) -> None:
        self.values: defaultdict[str, set[str]] = defaultdict(set)
        self.identifiers: defaultdict[str, set[str]] = defaultdict(set)
        for person in persons:
            for place, keys in _KEYS.items():
                if texts := set(_texts(person.get(keys[0]), keys[1:])):
                    self.values[place] |= texts
            for _, identifier in _identifiers(person, ()):
                value, system = identifier.get("value"), identifier.get("system")
                if isinstance(value, str) and value.strip():
                    self.identifiers[value] |= {system} if isinstance(system, str) else set()
        self._spelled = [spelling for value in self.identifiers for spelling in _spellings(value)]

    def __bool__(self) -> bool:
        return bool(self.values or self.identifiers)

    def of(self, identifier: Mapping[str, Any]) -> Collection[str] | None:
        """The systems with which a value was sent; ``None`` when it was none of these persons."""
        value = identifier.get("value")
        return self.identifiers.get(value) if isinstance(value, str) else None

    def may_be_in(self, text: bytes) -> bool:
        """Whether an identifier of theirs may be in a text: cheap, and never no when one is."""
        if not self.identifiers:
            return False
        if b"\\u00" in text and _ESCAPED.search(text):
            return True
        if len(self.identifiers) <= _FEW:
            return any(one in text for one in self._spelled)
        plain = not self.identifiers.keys().isdisjoint(map(bytes.decode, _VALUE.findall(text)))
        return plain or any(one in text for one in self._spelled if b"\\" in one)


def _spellings(value: str) -> set[bytes]:
    """How services write a text in JSON: as it is, in ASCII, with hexadecimal digits of either case, and slashes."""
    plain, ascii_ = json.dumps(value, ensure_ascii=False), json.dumps(value)
    upper = re.sub(r"\\u[0-9a-f]{4}", lambda found: "\\u" + found[0][2:].upper(), ascii_)
    texts = {plain, ascii_, upper}
    return {text.encode() for text in texts | {text.replace("/", "\\/") for text in texts}}


def _persons_in(text: bytes, given: ResourceSummary) -> Iterator[Mapping[str, Any]]:
    """Every person of a request."""
    if not given.is_bundle:
        if given.type in PERSONS or given.type in _ENVELOPES or b'"contained"' in text:
            yield from (person for _, person in _persons(_any.decode(text), ""))
        return
    raws = [entry.resource for entry in _bundle.decode(text).entry or () if len(entry.resource) > len("null")]
    contains = b'"contained"' in text
    for kind, raw in zip(given.types, raws, strict=False):
        if kind in PERSONS or kind in _ENVELOPES or (contains and b'"contained"' in bytes(raw)):
            yield from (person for _, person in _persons(_any.decode(raw), ""))


def _persons(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every person in a resource: its path, and itself."""
    if not isinstance(value, dict) or depth > _DEEP:
        return
    if isinstance(kind := value.get("resourceType"), str) and kind in PERSONS:
        yield path, value
    inside: list[tuple[str, Any]] = [("contained", one) for one in _objects(value.get("contained"))]
    inside += [("entry", one.get("resource")) for one in _objects(value.get("entry"))]
    for name in ("parameter", "part"):
        for one in _objects(value.get(name)):
            inside += [(name, one.get("resource")), (name, {"part": one.get("part")})]
    for name, one in inside:
        kind = one.get("resourceType") if isinstance(one, dict) else None
        yield from _persons(one, f"{path}.{name}.{_segment(kind)}" if kind else path, depth + 1)


def _identifies(kind: str, name: str) -> bool:
    """Whether an element must be read also where no number of a person stands anywhere."""
    if name in ("resourceType", "contained") or kind in _ENVELOPES:
        return True
    return kind in PERSONS and name in _ELEMENTS


def _type(resource: Members) -> str:
    spelled = bytes(resource.get("resourceType", b""))
    kind = _any.decode(spelled) if b"\\" in spelled else spelled[1:-1].decode()
    return kind if isinstance(kind, str) else ""


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


def _identifiers(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every identifier in a value, whatever FHIR calls it there: its path, and itself."""
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
    """A name that FHIR could have; others may be data."""
    return name if isinstance(name, str) and _NAME.fullmatch(name) else "…"
