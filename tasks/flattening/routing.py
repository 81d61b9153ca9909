"""Assign resources to attribute groups (docs/steps.md).

A resource belongs to the groups that a Provenance names for it, on its own line or in ``core.ndjson``. If none names it
but its line has Provenances that name groups, it belongs to no group. If the line has none, its groups are those with
its type and ``meta.profile``, else the only group with its type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from tasks.flattening.views import GroupView
from tasks.shared.errors import DataError
from tasks.shared.fhir.bundles import unwrapped
from tasks.shared.fhir.crtdl import AttributeGroup
from tasks.shared.fhir.resource import UNREADABLE, head_of, target_of

_LEFT_OUT: Final = -1
"""Place of a group without a view."""

_PROVENANCE: Final = "Provenance"
_SYSTEM: Final = "attribute_group"


class Resource(msgspec.Struct, frozen=True, gc=False):
    """A resource of a line, with the bytes it came in."""

    type: str
    id: str | None
    raw: bytes | msgspec.Raw


Delivery = tuple[int, Resource]
"""The place of a group among the views, and a resource for it."""

Named = dict[str, list[int]]
"""``Type/id`` of a resource → the places of the groups that Provenances name for it."""


class Router:
    """Assigns the resources of lines to groups, and counts them. Provenances that name groups are not counted.

    The place of a group is the index of its view. ``by_type`` is the number of resources that no Provenance named.
    ``unrouted`` (in no group) and ``left_out`` (only in groups without a view) count resources by type.
    """

    def __init__(self, groups: Iterable[AttributeGroup], views: Sequence[GroupView]) -> None:
        self.lines = self.resources = self.by_type = 0
        self.unrouted: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self._types = [view.resource_type for view in views]
        self._by_core: Named = {}
        self._by_id: dict[str, int] = {}
        self._by_type: dict[str, list[int]] = {}
        self._by_profile: dict[tuple[str, str], list[int]] = {}
        with_view = {view.group_id: (view.resource_type, place) for place, view in enumerate(views)}
        for group in groups:
            kind, place = with_view.get(group.id, (group.resource_type, _LEFT_OUT))
            self._by_id[group.id] = place
            self._by_type.setdefault(kind, []).append(place)
            self._by_profile.setdefault((kind, group.reference), []).append(place)

    def learn_core(self, line: bytes) -> None:
        """Remember the groups that the Provenances on a line of ``core.ndjson`` name, for all lines."""
        with suppress(DataError):  # ``route`` raises it again
            self._read(line, self._by_core)

    def route(self, line: bytes) -> list[Delivery]:
        """Return the resources of a line with their groups, in the order of the line. Raises ``DataError``."""
        named: Named = {}
        resources, has_own = self._read(line, named)
        self.lines += 1
        self.resources += len(resources)
        return [delivery for resource in resources for delivery in self._deliver(resource, named, has_own=has_own)]

    def _read(self, line: bytes, named: Named) -> tuple[list[Resource], bool]:
        """Return the resources of a line, and whether Provenances on it name groups; these are entered in ``named``."""
        resources, has_own = [], False
        for found in unwrapped(line):
            kind, identifier = head_of(found.raw)
            grouping = read_grouping(found.raw) if kind == _PROVENANCE else None
            if grouping is None:
                resources.append(Resource(kind, identifier, found.raw))
                continue
            has_own = True
            for key in grouping[1]:
                places = named.setdefault(key, [])
                known = (self._by_id.get(group) for group in grouping[0])
                places += [place for place in known if place is not None and place not in places]
        return resources, has_own

    def _deliver(self, resource: Resource, named: Named, *, has_own: bool) -> Iterator[Delivery]:
        """Yield a resource once for each of its groups; count it if it has none."""
        places = self._places(resource, named, has_own=has_own)
        routed = [place for place in places if place != _LEFT_OUT and self._types[place] == resource.type]
        if not routed:
            (self.left_out if _LEFT_OUT in places else self.unrouted)[resource.type] += 1
        return ((place, resource) for place in routed)

    def _places(self, resource: Resource, named: Named, *, has_own: bool) -> Sequence[int]:
        key = f"{resource.type}/{resource.id}"
        found = named.get(key) or self._by_core.get(key)
        if found is not None or has_own:
            return found or ()
        self.by_type += 1
        try:
            keys = dict.fromkeys((resource.type, profile) for profile in _profiles_of(resource.raw))
        except UNREADABLE:
            raise DataError("not-a-resource", "not a FHIR resource: the line is not valid JSON") from None
        of_type = self._by_type.get(resource.type, ())
        by_profile = [place for key in keys for place in self._by_profile.get(key, ())]
        return by_profile or (of_type if len(of_type) == 1 else ())


class _Provenance(msgspec.Struct, gc=False):
    target: list[dict[str, Any]] = []
    entity: list[dict[str, Any]] = []


_provenance = msgspec.json.Decoder(_Provenance)


def read_grouping(raw: bytes | msgspec.Raw) -> tuple[list[str], list[str]] | None:
    """Return the groups (ids of the CRTDL) that a Provenance names, and its targets (``Type/id``); ``None`` if it is
    about something else or is not valid FHIR."""
    try:
        read = _provenance.decode(raw)
        identifiers = [entity["what"]["identifier"] for entity in read.entity if "identifier" in entity.get("what", ())]
        groups = {one["value"]: None for one in identifiers if one.get("system", "").rpartition("/")[2] == _SYSTEM}
        targets = [target_of(target["reference"]) for target in read.target if "reference" in target]
    except (*UNREADABLE, KeyError, TypeError, AttributeError):
        return None
    return ([*groups], [key for key in targets if key is not None]) if groups else None


class _Profiled(msgspec.Struct, gc=False):
    meta: Any = None


_profiled = msgspec.json.Decoder(_Profiled)


def _profiles_of(raw: bytes | msgspec.Raw) -> list[str]:
    """Return the profiles that a resource claims in ``meta.profile``, without their versions."""
    meta = _profiled.decode(raw).meta
    claimed = meta.get("profile") if isinstance(meta, dict) else None
    return [one.partition("|")[0] for one in claimed or () if isinstance(one, str)]
