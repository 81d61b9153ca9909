"""Assign resources to attribute groups (document 3 §5, "Routing").

A resource belongs to the groups whose Provenance on its own line names it; the Provenances of ``core.ndjson`` serve all
lines. What is named by none of them, on a line without a Provenance, is routed by type and ``meta.profile``, then by
type alone where one group has that type.

The ``entity`` of a Provenance names the group, by an identifier of the naming system ``attribute_group``; its
``target`` the resources (document 3 §2, "Extraction semantics").
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from tasks.flattening.views import GroupView
from tasks.shared.fhir.bundle import Resource, cut
from tasks.shared.fhir.crtdl_model import AttributeGroup
from tasks.shared.fhir.long_line import LongLine, lines_with_long
from tasks.shared.fhir.reading import LARGEST_RESOURCE, UNREADABLE, profiles_of
from tasks.shared.files.data_directory import CORE, base_name
from tasks.shared.meter import Meter
from tasks.shared.stop import Stop

LEFT_OUT: Final = -1
"""The place of a group that has no view."""

PROVENANCE: Final = "Provenance"
MARK: Final = b'"Provenance"'
"""What the text of a line holds if there is a Provenance on it."""

_SYSTEM: Final = "attribute_group"

log = logging.getLogger("sluice.flattening")


Delivery = tuple[int, str, bytes | msgspec.Raw]
"""The place of a group, and a resource for it: its id, and the bytes it came in."""


class RoutingFacts(msgspec.Struct):
    """Counts of the routing. ``bytes`` is the size of the content; Provenances that name groups are not counted as
    resources. ``unrouted`` and ``left_out`` (only in groups without a view) are counts by type. ``fallback`` is set if
    resources were routed by profile and type."""

    lines: int = 0
    bytes: int = 0
    resources: int = 0
    derived_ids: int = 0
    fallback: bool = False
    unrouted: dict[str, int] = msgspec.field(default_factory=Counter)
    left_out: dict[str, int] = msgspec.field(default_factory=Counter)


class Groups:
    """The groups of a job: ``views`` by their place, and those of the CRTDL that have none."""

    def __init__(self, groups: Iterable[AttributeGroup], views: Sequence[GroupView]) -> None:
        self.types = [view.resource_type for view in views]
        self._by_id = {group.id: LEFT_OUT for group in groups} | {view.group_id: i for i, view in enumerate(views)}
        self._by_type: dict[str, list[int]] = {}
        self._by_profile: dict[tuple[str, str], list[int]] = {}
        with_view = {view.group_id: (view.resource_type, place) for place, view in enumerate(views)}
        for group in groups:
            kind, place = with_view.get(group.id, (group.resource_type, LEFT_OUT))
            self._by_type.setdefault(kind, []).append(place)
            self._by_profile.setdefault((kind, group.reference), []).append(place)

    def places(self, ids: Iterable[str]) -> list[int]:
        """Return the indexes of the groups with these ids, as far as the CRTDL contains them."""
        return [self._by_id[group] for group in ids if group in self._by_id]

    def without_provenance(self, resource: Resource) -> Sequence[int]:
        """Return the indexes of the groups of a resource that has no Provenance."""
        profiles = profiles_of(resource.raw, strict=True)
        found = [place for profile in profiles for place in self._by_profile.get((resource.type, profile), ())]
        if found:
            return list(dict.fromkeys(found))
        of_type = self._by_type.get(resource.type, ())
        return of_type if len(of_type) == 1 else ()


Named = dict[str, list[int]]
"""The places of the groups of a resource, by its ``Type/id``."""

_PART: Final = 1 << 18
"""Bytes of a long line that are looked at together."""


class Router:
    """Reads ``files`` in their order and routes their resources. For one thread.

    ``limit`` is how many bytes of a line are held; longer ones wait in ``directory``. ``largest`` is the limit of a
    resource in bytes. ``meter`` is told how far it is. Raises ``DataError`` for what is no resource, with
    ``file:line``, and ``StorageError``.
    """

    def __init__(
        self,
        files: Sequence[Path],
        groups: Groups,
        directory: Path,
        *,
        limit: int,
        stop: Stop,
        meter: Meter,
        largest: int = LARGEST_RESOURCE,
    ) -> None:
        self.facts = RoutingFacts()
        self._files = files
        self._groups = groups
        self._directory = directory
        self._limit = limit
        self._largest = largest
        self._stop = stop
        self._meter = meter
        self._by_core: Named = {}

    def deliveries(self) -> Iterator[list[Delivery]]:
        """Yield the resources of each line, or part of a long line, with their groups, in the order of the input."""
        for path in self._files:
            before = self.facts.bytes
            if base_name(path.name).lower() == CORE:
                for number, line in self._lines(path):
                    for part in self._parts(line):
                        self._name(self._by_core, _groupings(part, path, number))
            ordinal = 0
            for number, line in self._lines(path):
                self.facts.lines += 1
                named: Named = {}
                if isinstance(line, LongLine):
                    self.facts.bytes += line.size + 1
                    own = self._name(
                        named, (one for part in self._parts(line) for one in _groupings(part, path, number))
                    )
                    for part in self._parts(line):
                        resources, _, ordinal = self._resources(part, path, number, ordinal)
                        yield self._deliver(resources, named, own=own)
                else:
                    self.facts.bytes += len(line) + 1
                    resources, groupings, ordinal = self._resources(line, path, number, ordinal)
                    own = self._name(named, groupings)
                    yield self._deliver(resources, named, own=own)
                self._meter.within(path, self.facts.bytes - before)
            self._meter.within(path, self.facts.bytes - before, whole=True)
            self._meter.add(files=1)

    def _lines(self, path: Path) -> Iterator[tuple[int, bytes | LongLine]]:
        for numbered in lines_with_long(path, limit=self._limit, spool=self._directory, largest=self._largest):
            self._stop.check()
            yield numbered

    def _parts(self, line: bytes | LongLine) -> Iterator[bytes]:
        for part in (line,) if isinstance(line, bytes) else line.bundles(_PART):
            self._stop.check()
            yield part

    def _name(self, named: Named, groupings: Iterable[Grouping]) -> bool:
        """Enter the groups of the targets of Provenances; return whether there are any."""
        found = False
        for one in groupings:
            found = True
            places = self._groups.places(one.groups)
            for key in one.targets:
                known = named.setdefault(key, [])
                known += [place for place in places if place not in known]
        return found

    def _resources(
        self, line: bytes, path: Path, number: int, first: int
    ) -> tuple[Sequence[Resource], list[Grouping], int]:
        """Return the resources of a line, what its Provenances say of groups, and the next ordinal."""
        part = cut(line, file=path.name, number=number, first=first)
        for rejected in part.rejected:
            raise rejected.error()
        self.facts.derived_ids += part.derived_ids
        resources, own = _without_provenances(part.resources) if MARK in line else (part.resources, [])
        self.facts.resources += len(resources)
        return resources, own, first + part.count

    def _places(self, resource: Resource, named: Named, *, own: bool) -> Sequence[int]:
        """Return the places of a resource on a line; ``own`` says that the line has Provenances."""
        found = named.get(resource.key) or self._by_core.get(resource.key)
        if found is not None or own:
            return found or ()
        if not self.facts.fallback:
            self.facts.fallback = True
            log.warning("flattening: no Provenance names a group of some resources: routing by profile and type")
        return self._groups.without_provenance(resource)

    def _deliver(self, resources: Sequence[Resource], named: Named, *, own: bool) -> list[Delivery]:
        out: list[Delivery] = []
        types = self._groups.types
        for resource in resources:
            routed = left_out = False
            for place in self._places(resource, named, own=own):
                if place == LEFT_OUT:
                    left_out = True
                elif types[place] == resource.type:
                    routed = True
                    out.append((place, resource.id, resource.raw))
            if not routed:
                (self.facts.left_out if left_out else self.facts.unrouted)[resource.type] += 1
        return out


def _without_provenances(resources: Iterable[Resource]) -> tuple[list[Resource], list[Grouping]]:
    kept: list[Resource] = []
    own: list[Grouping] = []
    for resource in resources:
        found = grouping(resource.raw) if resource.type == PROVENANCE else None
        if found is None:
            kept.append(resource)
        else:
            own.append(found)
    return kept, own


def _groupings(line: bytes, path: Path, number: int) -> list[Grouping]:
    """Read the Provenances of a line; errors are found when the line is routed."""
    if MARK not in line:
        return []
    return _without_provenances(cut(line, file=path.name, number=number).resources)[1]


@dataclass(frozen=True, slots=True, repr=False)
class Grouping:
    """The resources (``Type/id``) of groups (ids of the CRTDL)."""

    groups: tuple[str, ...]
    targets: tuple[str, ...]


class _ProvenancePart(msgspec.Struct):
    target: list[dict[str, Any]] | None = None
    entity: list[dict[str, Any]] | None = None


_decoder = msgspec.json.Decoder(_ProvenancePart)


def grouping(raw: bytes | msgspec.Raw) -> Grouping | None:
    """Read the groups of a Provenance; ``None`` if it is about something else or is not valid FHIR."""
    try:
        part = _decoder.decode(raw)
    except UNREADABLE:
        return None
    groups = [value for entity in part.entity or () if (value := _group(entity)) is not None]
    if not groups:
        return None
    references = [target.get("reference") for target in part.target or ()]
    return Grouping(tuple(dict.fromkeys(groups)), tuple([key for one in references if (key := key_of(one))]))


def key_of(reference: object) -> str | None:
    """``Type/id`` of a literal reference: relative or absolute, of a version or not."""
    if not isinstance(reference, str):
        return None
    if reference.count("/") == 1:
        return reference
    parts = reference.partition("/_history/")[0].rsplit("/", 2)
    return "/".join(parts[-2:]) if len(parts) > 1 else None


def _group(entity: dict[str, Any]) -> str | None:
    what = entity.get("what")
    identifier = what.get("identifier") if isinstance(what, dict) else None
    if not isinstance(identifier, dict):
        return None
    system, value = identifier.get("system"), identifier.get("value")
    named = isinstance(system, str) and system.rpartition("/")[2] == _SYSTEM
    return value if named and isinstance(value, str) else None
