"""Select the resources of the result and their attribute groups, for one patient or for the core file.

A *pair* is a resource in a group. Groups select pairs directly; references of selected pairs add more pairs. Then pairs
with an unresolved ``mustHave`` reference are removed, and those that only they referenced (document 3 §2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from deployments.sandbox.common.r4 import LITERAL
from deployments.sandbox.extraction.consent import Permission
from deployments.sandbox.extraction.dates import days_of
from deployments.sandbox.extraction.diagnostics import BatchEvents, Reason
from deployments.sandbox.extraction.parameters import matches, searched_values
from deployments.sandbox.extraction.query import ExtractionGroup, ExtractionQuery, RequestedElement
from deployments.sandbox.extraction.reader import ResourceLocation, ResourceReader
from deployments.sandbox.extraction.tree import Node, references, values
from deployments.sandbox.extraction.types import PATIENT, is_patients

Pair = tuple[str, str]
"""``Type/id`` and the id of a group."""


@dataclass(slots=True)
class Link:
    """A reference attribute of a pair: the referenced resources, and the resulting pairs."""

    attribute: RequestedElement
    keys: list[str]
    targets: list[Pair] = field(default_factory=list)


Links = tuple[Link, ...]


def local_key(reference: str) -> str | None:
    """Return ``Type/id`` of a relative literal reference, or None."""
    match = LITERAL.fullmatch(reference)
    return f"{match[1]}/{match[2]}" if match else None


class Evaluator:
    """Checks single resources. Resources of no patient are checked once.

    The core pass (``core``) reports the exclusions within the core file, so that batches do not repeat them.
    """

    def __init__(
        self, query: ExtractionQuery, reader: ResourceReader, events: BatchEvents, *, core: bool = False
    ) -> None:
        self.query = query
        self.reader = reader
        self._events = events
        self._core = core
        self._shared: dict[Pair, Links | None] = {}

    def direct_groups(self, *, of_patients: bool) -> list[ExtractionGroup]:
        """Return groups that select resources directly."""
        return [group for group in self.query.groups if not group.reference_only and group.of_patients == of_patients]

    def report(self, reason: Reason, group: ExtractionGroup, attribute: str, key: str, patient: str | None) -> None:
        """Report an exclusion, unless the core pass reports it."""
        leads_here = reason is Reason.MUST_HAVE and group.reference_only
        if group.of_patients or self._core or leads_here:
            self._events.resource(reason, group, attribute, key, patient)

    def links(
        self, place: ResourceLocation, group: ExtractionGroup, permission: Permission | None, node: Node | None = None
    ) -> Links | None:
        """Return the links of a resource that meets a group's conditions, or None."""
        if group.of_patients:
            return self._evaluate(place, group, permission, node)
        pair = (place.key, group.id)
        if pair not in self._shared:
            self._shared[pair] = self._evaluate(place, group, None, node)
        known = self._shared[pair]
        return None if known is None else tuple(Link(link.attribute, link.keys) for link in known)

    def fits(self, place: ResourceLocation, groups: Iterable[ExtractionGroup]) -> bool:
        """Return True if a resource matches type, profile and filters of a group, regardless of other conditions."""
        node = self.reader.load(place)
        return any(belongs(node, group) for group in groups)

    def _evaluate(
        self, place: ResourceLocation, group: ExtractionGroup, permission: Permission | None, node: Node | None
    ) -> Links | None:
        node = node if node is not None else self.reader.load(place)
        if not belongs(node, group):
            return None
        if permission is not None and not permission.allows(node):
            self.report(Reason.CONSENT, group, "", place.key, place.patient)
            return None
        for attribute in group.attributes:
            if attribute.must_have and next(values(node, attribute.path), None) is None:
                self.report(Reason.MUST_HAVE, group, attribute.ref, place.key, place.patient)
                return None
        return tuple(
            Link(attribute, _keys(values(node, attribute.path))) for attribute in group.attributes if attribute.linked
        )


def belongs(node: Node, group: ExtractionGroup) -> bool:
    """Return True if a resource has a group's type and profile and passes its filters."""
    if node.get("resourceType") != group.type:
        return False
    if group.type == PATIENT:
        return True
    if not group.takes_all:
        meta = node.get("meta")
        claimed = meta.get("profile") if isinstance(meta, dict) else None
        profiles = [text.partition("|")[0] for text in claimed or () if isinstance(text, str)]
        if group.profile not in profiles:
            return False
    if group.tokens and not any(
        matches(value, token.codes) for token in group.tokens for value in searched_values(token.looks, node)
    ):
        return False
    if group.date is None:
        return True
    happened = (days_of(value) for value in searched_values(group.date.looks, node))
    return any(days is not None and days.overlaps(group.date.days) for days in happened)


def _keys(found: Iterable[object]) -> list[str]:
    """Return ``Type/id`` of the references below some values; other references are ignored."""
    keys = (local_key(reference["reference"]) for value in found for reference in references(value))
    return list(dict.fromkeys(key for key in keys if key is not None))


class Selection:
    """The pairs of one patient, or of the core file (``patient`` None)."""

    def __init__(self, evaluator: Evaluator, patient: str | None, permission: Permission | None = None) -> None:
        self._of = evaluator
        self._by_id = evaluator.query.by_id
        self._patient = patient
        self._permission = permission
        self._links: dict[Pair, Links] = {}
        self._failed: set[Pair] = set()
        self._roots: set[Pair] = set()
        self._waiting: list[Pair] = []
        self.places: dict[str, ResourceLocation] = {}
        self.alive: set[Pair] = set()
        """Pairs in the result, after ``prune``."""

    def add(self, place: ResourceLocation, groups: Iterable[ExtractionGroup]) -> None:
        """Add a resource to those groups of its type that accept the resource."""
        fitting = [group for group in groups if group.type == place.type]
        node = self._of.reader.load(place) if fitting else None
        for group in fitting:
            if self._add_pair(place, group, node):
                self._roots.add((place.key, group.id))

    def lacks_direct(self) -> bool:
        """Return True if a direct group with a ``mustHave`` is empty, or there is no Patient."""
        return self._lacks(self._roots)

    def lacks_alive(self) -> bool:
        """Return True if that applies after ``prune``."""
        return self._lacks(self.alive)

    def expand(self) -> None:
        """Follow the links of all pairs to further pairs (stage REFERENCE_RESOLVE)."""
        while self._waiting:
            pair = self._waiting.pop()
            group = self._by_id[pair[1]]
            for link in self._links[pair]:
                for key in link.keys:
                    link.targets += self._targets(group, link.attribute, key)

    def prune(self) -> None:
        """Remove pairs with unresolved required references, and pairs that only they referenced (CASCADING_DELETE)."""
        standing = set(self._links)
        causes: dict[Pair, str] = {}
        changed = True
        while changed:
            changed = False
            for pair in [*standing]:
                broken = self._broken(pair, standing)
                if broken is not None:
                    causes[pair] = broken
                    standing.discard(pair)
                    changed = True
        self.alive = self._reachable(standing)
        for pair in sorted(set(self._links) - self.alive):
            group = self._by_id[pair[1]]
            self._of.report(Reason.CASCADING_DELETE, group, causes.get(pair, ""), pair[0], self._patient)

    def keys(self, *, of_patients: bool) -> dict[str, list[str]]:
        """Return the groups of each resource, resources by type and id, groups in the order of the query."""
        order = {group.id: number for number, group in enumerate(self._of.query.groups)}
        found: dict[str, list[str]] = {}
        for key, group in sorted(self.alive, key=lambda pair: (pair[0].split("/"), order[pair[1]])):
            if self._by_id[group].of_patients == of_patients:
                found.setdefault(key, []).append(group)
        return found

    def _lacks(self, pairs: Iterable[Pair]) -> bool:
        present = {group for _, group in pairs}
        return any(
            group.id not in present
            for group in self._of.direct_groups(of_patients=True)
            if group.must_have or group.type == PATIENT
        )

    def _add_pair(self, place: ResourceLocation, group: ExtractionGroup, node: Node | None = None) -> bool:
        pair = (place.key, group.id)
        if pair in self._links:
            return True
        if pair in self._failed:
            return False
        links = self._of.links(place, group, self._permission, node)
        if links is None:
            self._failed.add(pair)
            return False
        self._links[pair] = links
        self._waiting.append(pair)
        self.places[place.key] = place
        return True

    def _targets(self, group: ExtractionGroup, attribute: RequestedElement, key: str) -> list[Pair]:
        kind, _, identity = key.partition("/")
        place = self.places.get(key) or self._of.reader.find(kind, identity, self._patient)
        if place is None:
            self._of.report(Reason.REFERENCE_NOT_FOUND, group, attribute.ref, key, self._patient)
            return []
        if is_patients(kind) and (self._patient is None or place.patient != self._patient):
            self._of.report(Reason.RESOURCE_OUTSIDE_BATCH, group, attribute.ref, key, self._patient)
            return []
        linked = [self._by_id[name] for name in attribute.linked]
        found = [(key, target.id) for target in linked if target.type == kind and self._add_pair(place, target)]
        if not found and not self._of.fits(place, linked):
            self._of.report(Reason.REFERENCE_NOT_FOUND, group, attribute.ref, key, self._patient)
        return found

    def _broken(self, pair: Pair, standing: set[Pair]) -> str | None:
        """Return the ``mustHave`` reference that is unresolved, or None."""
        for link in self._links[pair]:
            if link.attribute.must_have and standing.isdisjoint(link.targets):
                return link.attribute.ref
        return None

    def _reachable(self, standing: set[Pair]) -> set[Pair]:
        reached = self._roots & standing
        waiting = list(reached)
        while waiting:
            for link in self._links[waiting.pop()]:
                new = standing.intersection(link.targets) - reached
                reached |= new
                waiting += new
        return reached
