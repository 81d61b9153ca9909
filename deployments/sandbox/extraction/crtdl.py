"""CRTDL, the extraction query: its model, and reading it (document 3 §3).

The sandbox has no profiles, so it knows an element by its path only: type slices of choice elements
(``value[x]:valueQuantity``) are honoured, other slices are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from deployments.sandbox.common.r4 import RESOURCE_TYPES
from deployments.sandbox.extraction.ccdl import Cohort, check_version, read_ccdl
from deployments.sandbox.extraction.dates import Days
from deployments.sandbox.extraction.findings import Findings, QueryError, join, quoted
from deployments.sandbox.extraction.parameters import Looks, looks_at
from deployments.sandbox.extraction.tree import CHOICES, decode
from deployments.sandbox.extraction.types import PATIENT, ElementPath, is_patients

BASE_PROFILE = "http://hl7.org/fhir/StructureDefinition/"
_STEP = re.compile(r"[A-Za-z][A-Za-z0-9]*(\[x\])?(:[^.:]+)?")


@dataclass(frozen=True)
class TokenFilter:
    """What the search parameter looks at must have one of the codes."""

    looks: Looks
    codes: frozenset[tuple[str, str]]


@dataclass(frozen=True)
class DateFilter:
    """The days of what the search parameter looks at and these must overlap."""

    looks: Looks
    days: Days


@dataclass(frozen=True)
class Attribute:
    """An element to extract; ``linked`` are the ids of the groups that its references may lead to."""

    ref: str
    path: ElementPath
    must_have: bool = False
    linked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Group:
    """An attribute group: which resources, and what of them."""

    id: str
    label: str
    """Its name in reports: the group's name, or its id where it has none or shares it with another group."""
    type: str
    profile: str
    """Without a version."""
    attributes: tuple[Attribute, ...]
    reference_only: bool = False
    tokens: tuple[TokenFilter, ...] = ()
    date: DateFilter | None = None

    @property
    def takes_all(self) -> bool:
        """Whether the profile is the base profile of the type, which every resource conforms to."""
        return self.profile == BASE_PROFILE + self.type

    @property
    def of_patients(self) -> bool:
        """Whether its resources belong to patients."""
        return is_patients(self.type)

    @property
    def must_have(self) -> bool:
        """Whether any attribute must be there."""
        return any(attribute.must_have for attribute in self.attributes)


@dataclass(frozen=True)
class Query:
    """A CRTDL that the sandbox can honour."""

    cohort: Cohort
    groups: tuple[Group, ...]
    by_id: dict[str, Group] = field(default_factory=dict)


def read_query(body: bytes) -> Query:
    """Read a CRTDL. Raises ``QueryError`` with everything that is wrong or cannot be honoured."""
    findings = Findings()
    document = _document(body)
    check_version(document, "", "1", findings)
    cohort = read_ccdl(document.get("cohortDefinition"), "cohortDefinition", findings)
    groups = _groups(document, findings)
    findings.check()
    if cohort is None:
        raise QueryError(["cohortDefinition: is missing"])
    return Query(cohort, groups, {group.id: group for group in groups})


def read_cohort(body: bytes) -> Cohort:
    """Read the cohort of a CRTDL, or a bare CCDL (document 2, ``$evaluate-cohort``). Raises ``QueryError``."""
    findings = Findings()
    document = _document(body)
    if "cohortDefinition" in document:
        cohort = read_ccdl(document["cohortDefinition"], "cohortDefinition", findings)
    elif "inclusionCriteria" in document:
        cohort = read_ccdl(document, "", findings)
    else:
        raise QueryError(["neither a CRTDL (cohortDefinition) nor a CCDL (inclusionCriteria)"])
    findings.check()
    if cohort is None:
        raise QueryError(["cohortDefinition: is missing"])
    return cohort


def _document(body: bytes) -> dict[str, Any]:
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise QueryError(["the query is no JSON object"]) from None


def _groups(document: dict[str, Any], findings: Findings) -> tuple[Group, ...]:
    extraction = findings.mapping(document.get("dataExtraction"), "dataExtraction")
    if extraction is None:
        return ()
    places = findings.items(extraction, "attributeGroups", "dataExtraction", least=1)
    names = [item.get("name") for _, item in places if isinstance(item, dict)]
    groups: dict[str, Group] = {}
    for place, item in places:
        group = _group(item, place, names, findings)
        if group is None:
            continue
        if group.id in groups:
            findings.add(join(place, "id"), f"{quoted(group.id)} is used twice")
        groups[group.id] = group
    _check_links(places, groups, findings)
    patients = [group for group in groups.values() if group.type == PATIENT]
    if len(patients) != 1:
        findings.add("dataExtraction.attributeGroups", f"exactly one Patient group is expected, {len(patients)} found")
    if any(group.reference_only for group in patients):
        findings.add("dataExtraction.attributeGroups", "the Patient group cannot be includeReferenceOnly")
    return tuple(groups.values())


def _check_links(places: list[tuple[str, Any]], groups: dict[str, Group], findings: Findings) -> None:
    for place, item in places:
        if not isinstance(item, dict):
            continue
        group = groups.get(str(item.get("id")))
        for attribute in group.attributes if group else ():
            for linked in attribute.linked:
                if linked not in groups:
                    findings.add(
                        place, f"{quoted(attribute.ref)} links to the group {quoted(linked)}, which does not exist"
                    )


def _group(node: object, place: str, names: list[object], findings: Findings) -> Group | None:
    item = findings.mapping(node, place)
    if item is None:
        return None
    identity, profile = findings.text(item, "id", place), findings.text(item, "groupReference", place)
    name = findings.text(item, "name", place, needed=False)
    pairs = [
        (where, read)
        for where, entry in findings.items(item, "attributes", place)
        if (read := _attribute(entry, where, findings)) is not None
    ]
    kinds = sorted({kind for _, (kind, _) in pairs})
    if profile is not None and not item.get("attributes"):
        kinds = _kind_of(profile, place, findings)
    if identity is None or profile is None or not kinds:
        return None
    kind, profile = kinds[0], profile.partition("|")[0]
    if len(kinds) > 1:
        findings.add(join(place, "attributes"), f"are of several types: {', '.join(kinds)}")
    elif profile.startswith(BASE_PROFILE) and profile.removeprefix(BASE_PROFILE) in RESOURCE_TYPES - {kind}:
        findings.add(join(place, "groupReference"), f"is the profile of another type than the attributes' {kind}")
    tokens, date = _filters(item, kind, place, findings)
    if kind == PATIENT:
        tokens, date = (), None
    return Group(
        id=identity,
        label=name if name and names.count(name) == 1 else identity,
        type=kind,
        profile=profile,
        attributes=tuple(attribute for _, (_, attribute) in pairs),
        reference_only=findings.flag(item, "includeReferenceOnly", place, default=False),
        tokens=tokens,
        date=date,
    )


def _kind_of(profile: str, place: str, findings: Findings) -> list[str]:
    """The type of a group without attributes, of which id, profile and references are extracted."""
    kind = profile.partition("|")[0].removeprefix(BASE_PROFILE)
    if kind in RESOURCE_TYPES:
        return [kind]
    why = "the sandbox has no profiles to look it up, and takes a group without attributes for a base profile only"
    findings.add(join(place, "attributes"), f"at least one entry is expected to know the group's type: {why}")
    return []


def _attribute(node: object, place: str, findings: Findings) -> tuple[str, Attribute] | None:
    item = findings.mapping(node, place)
    if item is None:
        return None
    ref = findings.text(item, "attributeRef", place)
    must_have = findings.flag(item, "mustHave", place)
    links = [(where, entry) for where, entry in findings.items(item, "linkedGroups", place)]
    for where, entry in links:
        if not isinstance(entry, str):
            findings.add(where, "the id of a group is expected")
    read = _path(ref, join(place, "attributeRef"), findings) if ref is not None else None
    if ref is None or read is None:
        return None
    kind, path = read
    return kind, Attribute(ref, path, must_have, tuple(entry for _, entry in links if isinstance(entry, str)))


def _path(ref: str, place: str, findings: Findings) -> tuple[str, ElementPath] | None:
    kind, *steps = ref.split(".")
    if kind not in RESOURCE_TYPES or not steps:
        findings.add(place, f"{quoted(ref)} is no element of a resource type")
        return None
    path = []
    for step in steps:
        if not _STEP.fullmatch(step):
            findings.add(place, f"{quoted(ref)} is no element path")
            return None
        name, _, slice_name = step.partition(":")
        if not slice_name:
            path.append(name)
        elif name.endswith("[x]") and slice_name in {name[:-3] + choice for choice in CHOICES}:
            path.append(slice_name)
        else:
            findings.add(place, f"{quoted(ref)} names a slice; the sandbox has no profiles to look it up")
            return None
    return kind, tuple(path)


def _filters(
    item: dict[str, Any], kind: str, place: str, findings: Findings
) -> tuple[tuple[TokenFilter, ...], DateFilter | None]:
    tokens: list[TokenFilter] = []
    dates: list[DateFilter] = []
    for where, entry in findings.items(item, "filter", place):
        node = findings.mapping(entry, where)
        parameter = findings.text(node, "name", where) if node is not None else None
        if node is None or parameter is None:
            continue
        sort = node.get("type")
        looks = looks_at(kind, str(sort), parameter)
        match sort:
            case "token":
                findings.known(node, ("type", "name", "codes", "display"), where)
                tokens.append(TokenFilter(looks, _codes(node, where, findings)))
            case "date":
                findings.known(node, ("type", "name", "start", "end", "display"), where)
                dates.append(DateFilter(looks, _days(node, where, findings)))
            case _:
                findings.add(join(where, "type"), "token or date is expected")
                continue
        if not looks and kind != PATIENT:
            findings.add(join(where, "name"), f"R4 gives {kind} no {sort} search parameter {quoted(parameter)}")
    if len(dates) > 1:
        findings.add(join(place, "filter"), "at most one date filter is allowed")
    return tuple(tokens), dates[0] if dates else None


def _codes(node: dict[str, Any], place: str, findings: Findings) -> frozenset[tuple[str, str]]:
    codes = set()
    for where, entry in findings.items(node, "codes", place, least=1):
        coding = findings.mapping(entry, where)
        if coding is None:
            continue
        code = findings.text(coding, "code", where)
        system = findings.text(coding, "system", where, needed=False)
        if code is not None:
            codes.add((system or "", code))
    return frozenset(codes)


def _days(node: dict[str, Any], place: str, findings: Findings) -> Days:
    start, end = findings.day(node, "start", place), findings.day(node, "end", place)
    if node.get("start") is None and node.get("end") is None:
        findings.add(place, "start or end is expected")
    if start is not None and end is not None and end < start:
        findings.add(place, "end is before start")
    whole = Days()
    return Days(start.toordinal() if start else whole.first, end.toordinal() if end else whole.last)
