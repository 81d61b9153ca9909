"""Select the resources of the result and their attribute groups, for one patient or for the core file.

A *pair* is a resource in a group. Groups select pairs directly; references of selected pairs add more pairs. Then pairs
with an unresolved ``mustHave`` reference are removed, and those that only they referenced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from deployments.sandbox.extraction.consent import Permission
from deployments.sandbox.extraction.data import DataSet, Resource
from deployments.sandbox.extraction.dates import days_between, days_of
from deployments.sandbox.extraction.events import Pair, Reason, UnitRecord
from deployments.sandbox.extraction.query import (
    Attribute,
    DateFilter,
    Group,
    Query,
    TokenFilter,
    codes_of,
)
from deployments.sandbox.extraction.tree import Node, has_code, references, values
from deployments.sandbox.extraction.vocabulary import DATE_FILTERS, PATIENT, TOKEN_FILTERS, is_patients
from deployments.sandbox.r4 import local_key


@dataclass(slots=True)
class Link:
    """A reference attribute of a pair: the referenced resources, and the resulting pairs."""

    attribute: Attribute
    keys: list[str]
    targets: list[Pair] = field(default_factory=list)


def belongs(node: Node, group: Group) -> bool:
    """Return whether a resource has a group's type and profile and passes its filters."""
    if node.get("resourceType") != group.type:
        return False
    if group.type == PATIENT:
        return True
    claimed = [text.partition("|")[0] for text in values(node, ("meta", "profile")) if isinstance(text, str)]
    if not group.takes_all and group.profile not in claimed:
        return False
    filters = group.filter or ()
    tokens = [each for each in filters if isinstance(each, TokenFilter)]
    dates = [each for each in filters if isinstance(each, DateFilter)]
    return (not tokens or any(_has_token(node, each) for each in tokens)) and all(
        _is_within(node, each) for each in dates
    )


def _has_token(node: Node, wanted: TokenFilter) -> bool:
    path = TOKEN_FILTERS[node["resourceType"]][wanted.name].split(".")
    return any(has_code(value, codes_of(wanted.codes)) for value in values(node, path))


def _is_within(node: Node, wanted: DateFilter) -> bool:
    days = days_between(wanted.start, wanted.end)
    path = DATE_FILTERS[node["resourceType"]][wanted.name].split(".")
    happened = (days_of(value) for value in values(node, path))
    return any(found is not None and found.overlaps(days) for found in happened)


def _keys(found: Iterable[object]) -> list[str]:
    """Return ``Type/id`` of the references below some values; other references are ignored."""
    keys = (local_key(reference["reference"]) for value in found for reference in references(value))
    return list(dict.fromkeys(key for key in keys if key is not None))


@dataclass
class Selection:
    """The pairs of one patient, or of the core file (``patient`` None), which alone reports what its resources lack.

    ``permission``: the days of the patient's data, None for all.
    """

    query: Query
    data: DataSet
    record: UnitRecord
    patient: str | None = None
    permission: Permission | None = None
    resources: dict[str, Resource] = field(default_factory=dict)
    failed: set[Pair] = field(default_factory=set)
    """Pairs that do not meet the conditions of their group."""
    alive: set[Pair] = field(default_factory=set)
    """Pairs in the result: those selected directly, and after ``prune`` all."""
    _links: dict[Pair, list[Link]] = field(default_factory=dict)
    _waiting: list[Pair] = field(default_factory=list)

    def add(self, resource: Resource, groups: Iterable[Group]) -> None:
        """Add a resource to those groups that accept it."""
        for group in groups:
            if group.type == resource.type and self._add_pair(resource, group):
                self.alive.add((resource.key, group.id))

    def lacks_required(self) -> bool:
        """Return whether a direct group with a ``mustHave`` is empty, or there is no Patient."""
        present = {group for _, group in self.alive}
        needed = (group for group in self.query.direct(of_patients=True) if group.must_have or group.type == PATIENT)
        return any(group.id not in present for group in needed)

    def expand(self) -> None:
        """Follow the links of all pairs to further pairs."""
        while self._waiting:
            pair = self._waiting.pop()
            for link in self._links[pair]:
                for key in link.keys:
                    link.targets += self._targets(self.query.by_id[pair[1]], link.attribute, key)

    def prune(self) -> None:
        """Remove pairs with unresolved required references, and pairs that only they referenced."""
        standing = set(self._links)
        causes: dict[Pair, str] = {}
        broken = True
        while broken:
            found = {pair: ref for pair in standing if (ref := self._broken(pair, standing)) is not None}
            standing -= found.keys()
            causes |= found
            broken = bool(found)
        self.alive = self._reachable(standing)
        for pair in sorted(set(self._links) - self.alive):
            group = self.query.by_id[pair[1]]
            self._report(Reason.CASCADING_DELETE, group, causes.get(pair, ""), pair[0])

    def groups_of(self, *, of_patients: bool) -> dict[str, list[str]]:
        """Return the groups of each resource, resources by type and id, groups in the order of the query."""
        order = [*self.query.by_id]
        found: dict[str, list[str]] = {}
        for key, group in sorted(self.alive, key=lambda pair: (pair[0].split("/"), order.index(pair[1]))):
            if self.query.by_id[group].of_patients == of_patients:
                found.setdefault(key, []).append(group)
        return found

    def _add_pair(self, resource: Resource, group: Group) -> bool:
        pair = (resource.key, group.id)
        if pair in self._links:
            return True
        if pair in self.failed:
            return False
        links = self._evaluated(resource, group)
        if links is None:
            self.failed.add(pair)
            return False
        self._links[pair] = links
        self._waiting.append(pair)
        self.resources[resource.key] = resource
        return True

    def _evaluated(self, resource: Resource, group: Group) -> list[Link] | None:
        """Return the links of a resource that meets a group's conditions, or None. Consent is for patients' groups."""
        node = resource.node()
        if not belongs(node, group):
            return None
        if group.of_patients and self.permission is not None and not self.permission.allows(node):
            self._report(Reason.CONSENT, group, "", resource.key)
            return None
        for attribute in group.attributes:
            if attribute.must_have and next(values(node, attribute.path), None) is None:
                self._report(Reason.MUST_HAVE, group, attribute.attribute_ref, resource.key)
                return None
        return [
            Link(attribute, _keys(values(node, attribute.path)))
            for attribute in group.attributes
            if attribute.linked_groups
        ]

    def _report(self, reason: Reason, group: Group, attribute: str, key: str) -> None:
        if group.of_patients or self.patient is None:
            self.record.exclude(reason, self.query.label(group), attribute, key, self.patient)

    def _targets(self, group: Group, attribute: Attribute, key: str) -> list[Pair]:
        resource = self.data.find(key)
        if resource is None:
            self._report(Reason.REFERENCE_NOT_FOUND, group, attribute.attribute_ref, key)
            return []
        if is_patients(resource.type) and self.patient not in resource.owners:
            self._report(Reason.RESOURCE_OUTSIDE_BATCH, group, attribute.attribute_ref, key)
            return []
        linked = [self.query.by_id[name] for name in attribute.linked_groups or ()]
        found = [(key, each.id) for each in linked if each.type == resource.type and self._add_pair(resource, each)]
        if not found and not any(belongs(resource.node(), each) for each in linked):
            self._report(Reason.REFERENCE_NOT_FOUND, group, attribute.attribute_ref, key)
        return found

    def _broken(self, pair: Pair, standing: set[Pair]) -> str | None:
        """Return the ``mustHave`` reference that is unresolved, or None."""
        required = (link for link in self._links[pair] if link.attribute.must_have)
        return next((link.attribute.attribute_ref for link in required if standing.isdisjoint(link.targets)), None)

    def _reachable(self, standing: set[Pair]) -> set[Pair]:
        reached = self.alive & standing
        waiting = list(reached)
        while waiting:
            for link in self._links[waiting.pop()]:
                new = standing.intersection(link.targets) - reached
                reached |= new
                waiting += new
        return reached
