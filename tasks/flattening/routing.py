"""Assign resources to attribute groups (document 3 §5, "Routing").

A resource belongs to the groups whose Provenance names it, each (resource, group) once in a job. The line of a patient
holds its own Provenances, so it is routed by itself. ``core.ndjson`` is routed by all Provenances of that file; a line
without any, and what the core file does not name, by those of all files. Both are kept on disk (``routing_index.py``),
and the second is made only when it is needed.

The ``entity`` of a Provenance names the group, by an identifier of the naming system ``attribute_group``; its
``target`` the resources (document 3 §2, "Extraction semantics"). Data without any such Provenance is routed by type and
``meta.profile``, then by type alone where one group has that type.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from tasks.flattening.routing_index import RoutingIndex, RoutingScope
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
    resources. ``unrouted`` and ``left_out`` (only in groups without a view) are counts by type, ``repeated`` are
    resources that a group has already. ``fallback`` is set if there was no Provenance."""

    lines: int = 0
    bytes: int = 0
    resources: int = 0
    repeated: int = 0
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


Lookup = Callable[[Sequence[Resource]], Iterable[Sequence[int]]]
"""The places of the groups of each of these resources."""

_PART: Final = 1 << 18
"""Bytes of a long line that are looked at together."""


class Router:
    """Reads ``files`` in their order and routes their resources. For one thread.

    ``limit`` is how many bytes of a line are held; longer ones wait in ``directory``. ``largest`` is the limit of a
    resource in bytes. ``meter`` is told how far it is. Raises ``DataError`` for what is no resource, with
    ``file:line``, and ``StorageError``.
    """

    def __init__(
        self, files: Sequence[Path], groups: Groups, index: RoutingIndex, directory: Path, *, limit: int, stop: Stop,
        meter: Meter, largest: int = LARGEST_RESOURCE,
    ) -> None:  # fmt: skip
        self.facts = RoutingFacts()
        self._files = files
        self._groups = groups
        self._index = index
        self._directory = directory
        self._limit = limit
        self._largest = largest
        self._stop = stop
        self._meter = meter
        self._named_by_all: bool | None = None

    def deliveries(self) -> Iterator[list[Delivery]]:
        """Yield the resources of each line, or part of a long line, with their groups, in the order of the input."""
        for path in self._files:
            before = self.facts.bytes
            ordinals = 0
            lookup: Lookup | None = None
            if base_name(path.name).lower() == CORE and self._enter(RoutingScope.CORE, [path]):
                lookup = self._by_core
            for number, line in self._lines(path):
                self.facts.lines += 1
                if isinstance(line, LongLine):
                    self.facts.bytes += line.size + 1
                    ordinals = yield from self._long(line, path, lookup, ordinals)
                else:
                    self.facts.bytes += len(line) + 1
                    resources, own, ordinals = self._resources(line, path, number, ordinals)
                    if resources:
                        yield self._deliver(resources, lookup or self._by_line(own))
                self._meter.within(path, self.facts.bytes - before)
            self._meter.within(path, self.facts.bytes - before, whole=True)
            self._meter.add(files=1)

    def _lines(self, path: Path) -> Iterator[tuple[int, bytes | LongLine]]:
        for numbered in lines_with_long(path, limit=self._limit, spool=self._directory, largest=self._largest):
            self._stop.check()
            yield numbered

    def _resources(
        self, line: bytes, path: Path, number: int, first: int
    ) -> tuple[Sequence[Resource], list[Grouping], int]:
        """Return the resources of a line, the groupings of its Provenances, and the next ordinal."""
        part = cut(line, file=path.name, number=number, first=first)
        for rejected in part.rejected:
            raise rejected.error()
        self.facts.derived_ids += part.derived_ids
        resources, own = _without_provenances(part.resources) if MARK in line else (part.resources, [])
        self.facts.resources += len(resources)
        return resources, own, first + part.count

    def _long(
        self, line: LongLine, path: Path, lookup: Lookup | None, first: int
    ) -> Generator[list[Delivery], None, int]:
        if lookup is None:
            named = False
            for part in line.bundles(_PART):
                self._stop.check()
                named |= self._put(RoutingScope.LINE, _groupings(part, path, line.number))
            lookup = self._by(RoutingScope.LINE) if named else self._by_line(())
        for part in line.bundles(_PART):
            self._stop.check()
            resources, _, first = self._resources(part, path, line.number, first)
            yield self._deliver(resources, lookup)
        self._index.forget(RoutingScope.LINE)
        return first

    def _by_line(self, own: Iterable[Grouping]) -> Lookup:
        """Return the routing of the resources of a line, by its own Provenances if it has any."""
        named: dict[str, list[int]] = {}
        empty = True
        for found in own:
            empty = False
            places = self._groups.places(found.groups)
            for key in found.targets:
                known = named.setdefault(key, [])
                known += [place for place in places if place not in known]
        if not empty:
            return lambda resources: [named.get(resource.key, ()) for resource in resources]
        if self._named_by_all is None:
            log.info("flattening: some resources have no Provenance on their line: looking through all files")
            self._named_by_all = self._enter(RoutingScope.ALL, self._files)
            if not self._named_by_all:
                self.facts.fallback = True
                log.warning("flattening: the data has no Provenance that names a group: routing by profile and type")
        if self._named_by_all:
            return self._by(RoutingScope.ALL)
        return lambda resources: map(self._groups.without_provenance, resources)

    def _by_core(self, resources: Sequence[Resource]) -> Iterable[Sequence[int]]:
        """By the Provenances of ``core.ndjson``; what they do not name, by those of all files."""
        named = self._by(RoutingScope.CORE)(resources)
        if all(named):
            return named
        return [one or other for one, other in zip(named, self._by_line(())(resources), strict=True)]

    def _by(self, scope: RoutingScope) -> Callable[[Sequence[Resource]], list[list[int]]]:
        return lambda resources: self._index.places(scope, [resource.key for resource in resources])

    def _enter(self, scope: RoutingScope, files: Iterable[Path]) -> bool:
        """Put what the Provenances of these files say into the index; whether there are any."""
        found = False
        for path in files:
            for number, line in self._lines(path):
                for part in (line,) if isinstance(line, bytes) else line.bundles(_PART):
                    self._stop.check()
                    found |= self._put(scope, _groupings(part, path, number))
        return found

    def _put(self, scope: RoutingScope, own: Iterable[Grouping]) -> bool:
        found = False
        for one in own:
            found = True
            self._index.add(scope, one.targets, self._groups.places(one.groups))
        return found

    def _deliver(self, resources: Sequence[Resource], lookup: Lookup) -> list[Delivery]:
        out: list[Delivery] = []
        keys: list[tuple[str, int]] = []
        types = self._groups.types
        for resource, places in zip(resources, lookup(resources), strict=True):
            routed = left_out = False
            for place in places:
                if place == LEFT_OUT:
                    left_out = True
                elif types[place] == resource.type:
                    routed = True
                    out.append((place, resource.id, resource.raw))
                    keys.append((resource.key, place))
            if not routed:
                (self.facts.left_out if left_out else self.facts.unrouted)[resource.type] += 1
        new = self._index.new(keys)
        if all(new):
            return out
        self.facts.repeated += new.count(False)
        return [delivery for delivery, is_new in zip(out, new, strict=True) if is_new]


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
