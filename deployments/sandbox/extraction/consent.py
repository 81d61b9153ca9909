"""Consent: the patients and days that may be extracted today, and the audit of the resources this was read from.

The codes are those of the MII consent policy. Only active Consents count. A deny
removes its days from every permit. A permit that begins during an encounter counts from the encounter's start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date

from deployments.sandbox.extraction.dates import FIRST_DAY, DayRange, days_of
from deployments.sandbox.extraction.tree import Node, codings, values
from deployments.sandbox.extraction.vocabulary import DATES

_POLICY = "2.16.840.1.113883.3.1937.777.24.5.3"
USE = f"{_POLICY}.8"
"""Scientific use: a permit must include today."""
COLLECT = f"{_POLICY}.6"
"""Collection: a permit must include the days of a resource."""

AUDITED = ("Consent", "Encounter")
"""Resource types in the audit."""
_KEPT = {
    "Consent": ("status", "patient", "dateTime", "provision"),
    "Encounter": ("subject", "period"),
}


@dataclass(frozen=True)
class Permission:
    """The days whose data may be extracted: each within one permit, and without those of a deny."""

    permits: tuple[DayRange, ...]
    denies: tuple[DayRange, ...]

    def covers(self, days: DayRange) -> bool:
        """Return whether all of these days are permitted."""
        return any(each.covers(days) for each in self.permits) and not any(each.overlaps(days) for each in self.denies)

    def is_empty(self) -> bool:
        """Return whether denies cover every permit."""
        return all(any(deny.covers(permit) for deny in self.denies) for permit in self.permits)

    def allows(self, node: Node) -> bool:
        """Return True if a resource is within these days or has no date."""
        happened = when(node)
        return happened is None or self.covers(happened)


@dataclass(frozen=True)
class _Provision:
    permits: bool
    days: DayRange
    codes: frozenset[str]


def when(node: Node) -> DayRange | None:
    """Return the days of a resource, from the first of its type's date elements that is present."""
    for path in DATES.get(str(node.get("resourceType")), ()):
        for value in values(node, path):
            days = days_of(value)
            if days is not None:
                return days
    return None


def decide(nodes: Iterable[Node], today: date) -> Permission | None:
    """Return the days that one patient's Consents permit, or None if they do not permit the extraction.

    ``nodes`` are the patient's Consents and Encounters.
    """
    provisions: list[_Provision] = []
    encounters: list[DayRange] = []
    for node in nodes:
        if node["resourceType"] == "Consent" and node.get("status") == "active":
            provisions += _provisions(node)
        # An encounter without a known start moves nothing.
        elif node["resourceType"] == "Encounter" and (days := when(node)) and days.first != FIRST_DAY:
            encounters.append(days)
    provisions = [_moved(each, encounters) if each.permits else each for each in provisions]
    use, collect = (_permission(provisions, code) for code in (USE, COLLECT))
    is_used = use.covers(DayRange(today.toordinal(), today.toordinal()))
    return collect if is_used and not collect.is_empty() else None


def _moved(permit: _Provision, encounters: Sequence[DayRange]) -> _Provision:
    """Return a permit that starts with the encounter during which it begins, the earliest of several."""
    begins = permit.days.first
    starts = [days.first for days in encounters if days.first <= begins <= days.last]
    return replace(permit, days=replace(permit.days, first=min([begins, *starts])))


def _permission(provisions: Sequence[_Provision], code: str) -> Permission:
    about = [provision for provision in provisions if code in provision.codes]
    permits = tuple(provision.days for provision in about if provision.permits)
    return Permission(permits, tuple(provision.days for provision in about if not provision.permits))


def _provisions(consent: Node) -> Iterator[_Provision]:
    open_ones = [(value, DayRange()) for value in values(consent, ("provision",))]
    while open_ones:
        value, around = open_ones.pop()
        if not isinstance(value, dict):
            continue
        # A provision without its own period has that of the enclosing provision.
        days = days_of(value.get("period")) or around
        codes = frozenset(code for concept in values(value, ("code",)) for _, code in codings(concept))
        if codes and value.get("type") in ("permit", "deny"):
            yield _Provision(value["type"] == "permit", days, codes)
        open_ones += [(inner, days) for inner in values(value, ("provision",))]


def minimized(node: Node) -> Node:
    """Return a resource of the audit with the elements that an audit file has."""
    kind = str(node["resourceType"])
    kept: Node = {"resourceType": kind, "id": node["id"]}
    profiles = node.get("meta", {}).get("profile") if isinstance(node.get("meta"), dict) else None
    if profiles:
        kept["meta"] = {"profile": profiles}
    return kept | {name: node[name] for name in _KEPT[kind] if name in node}


def audit(patient: str, nodes: Sequence[Node]) -> Node:
    """Return one line of the audit file with the resources read for one patient."""
    entries = [{"resource": minimized(node)} for node in nodes]
    return {"resourceType": "Bundle", "id": patient, "type": "collection", "entry": entries}
