"""Read a query, and refuse what the sandbox cannot do.

Without profiles, the sandbox identifies an element by its path only: it supports type slices of choice elements
(``value[x]:valueQuantity``) and no others. Without a terminology server, a code matches only if system and code are
equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from deployments.sandbox.extraction.query import (
    BASE_PROFILE,
    AttributeFilter,
    Cohort,
    ConceptFilter,
    Criterion,
    DateFilter,
    Group,
    Query,
    ReferenceFilter,
    TokenFilter,
)
from deployments.sandbox.extraction.tree import CHOICES
from deployments.sandbox.extraction.vocabulary import (
    AGE,
    CONTEXT_SYSTEM,
    CONTEXTS,
    DATE_FILTERS,
    GENDER,
    PATIENT,
    TOKEN_FILTERS,
    UNITS_OF_AGE,
    Context,
)
from deployments.sandbox.r4 import resource_types

_MAX_DEPTH: Final = 10
"""Depth of criteria that refer to criteria."""
_ONE_LINE: Final = 120
_STEP: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*(\[x\])?(:[^.:]+)?")


class QueryError(Exception):
    """A query that is wrong or not supported; ``findings`` give each location and reason."""

    def __init__(self, findings: Iterable[str]) -> None:
        self.findings = tuple(findings)
        super().__init__(f"{len(self.findings)} findings")


def read_query(body: bytes) -> Query:
    """Read a CRTDL. Raises ``QueryError``."""
    try:
        query = msgspec.json.decode(body, type=Query)
    except (ValueError, RecursionError) as error:
        raise QueryError([f"the query cannot be read: {error}"]) from None
    _raise([*_of_cohort(query.cohort_definition, "cohortDefinition."), *_of_groups(query)])
    return query


def read_cohort(body: bytes) -> Cohort:
    """Read the cohort of a CRTDL, or a bare CCDL (document 2, ``$evaluate-cohort``). Raises ``QueryError``."""
    try:
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        cohort = msgspec.json.decode(members.get("cohortDefinition", body), type=Cohort)
    except (ValueError, RecursionError) as error:
        raise QueryError([f"the cohort query cannot be read: {error}"]) from None
    _raise([*_of_cohort(cohort, "cohortDefinition." if "cohortDefinition" in members else "")])
    return cohort


def quoted(text: object) -> str:
    """Return a piece of the query on one line, cut where it is long."""
    line = " ".join(str(text).split())
    return line if len(line) <= _ONE_LINE else line[: _ONE_LINE - 1] + "…"


def _raise(findings: list[str]) -> None:
    if findings:
        raise QueryError(findings)


# The cohort


def _of_cohort(cohort: Cohort, place: str) -> Iterator[str]:
    for key, rows in (
        ("inclusionCriteria", cohort.inclusion_criteria), ("exclusionCriteria", cohort.exclusion_criteria or ()),
    ):  # fmt: skip
        for number, row in enumerate(rows):
            for at, criterion in enumerate(row):
                yield from _of_criterion(criterion, f"{place}{key}[{number}][{at}]", 0)


def _of_criterion(criterion: Criterion, place: str, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        yield f"{place}: criteria are nested more than {_MAX_DEPTH} levels deep"
        return
    for number, coding in enumerate(criterion.term_codes):
        if not str(coding.display or "").strip():  # as the deployed server demands
            yield f"{place}.termCodes[{number}].display: must be a text"
    if criterion.context.system != CONTEXT_SYSTEM:
        yield f"{place}.context.system: must be {CONTEXT_SYSTEM}"
    context = CONTEXTS.get(criterion.context.code)
    if context is None:
        known = ", ".join(CONTEXTS)
        yield f"{place}.context: {quoted(criterion.context.code)} is not supported; known are {known}"
        return
    if context.name == "Einwilligung" and any(system.startswith("fdpg.consent") for system, _ in criterion.codes):
        yield f"{place}.termCodes: combined consent codes are not supported; use the provisions' codes"
    if criterion.value_filter is not None and not context.has_value:
        yield f"{place}.valueFilter: {context.name} has no value to filter by"
    if context.type == PATIENT:
        yield from _of_person(criterion, place)
        return
    for number, each in enumerate(criterion.attribute_filters or ()):
        yield from _of_attribute(each, context, f"{place}.attributeFilters[{number}]", depth)


def _of_person(criterion: Criterion, place: str) -> Iterator[str]:
    if criterion.attribute_filters or criterion.time_restriction:
        yield f"{place}: attributeFilters and timeRestriction are not supported for the context Patient"
    codes, value = criterion.codes, criterion.value_filter
    if codes not in ({GENDER}, {AGE}):
        yield f"{place}.termCodes: the context Patient supports one code: SNOMED CT 263495000 or 424144002"
    elif isinstance(value, ConceptFilter):
        if codes == {AGE}:
            yield f"{place}.valueFilter: must be a quantity filter"
    elif value is not None and codes == {GENDER}:
        yield f"{place}.valueFilter: must be a concept filter"
    elif value is not None and (value.unit is None or value.unit.code not in UNITS_OF_AGE):
        yield f"{place}.valueFilter.unit: an age must have one of the units {', '.join(UNITS_OF_AGE)}"


def _of_attribute(wanted: AttributeFilter, context: Context, place: str, depth: int) -> Iterator[str]:
    is_reference = isinstance(wanted, ReferenceFilter)
    known = (context.references if is_reference else context.plain).split()
    if wanted.attribute not in known:
        what = "a reference" if is_reference else "an element"
        names = ", ".join(sorted(known))
        yield f"{place}.attributeCode: {quoted(wanted.attribute)} is not {what} to filter by; known are {names}"
    for number, criterion in enumerate(wanted.criteria if isinstance(wanted, ReferenceFilter) else ()):
        if criterion.context.code == PATIENT:
            yield f"{place}.criteria[{number}]: the context Patient cannot be referred to"
        yield from _of_criterion(criterion, f"{place}.criteria[{number}]", depth + 1)


# The attribute groups


def _of_groups(query: Query) -> Iterator[str]:
    place = "dataExtraction.attributeGroups"
    ids = [group.id for group in query.groups]
    for number, group in enumerate(query.groups):
        where = f"{place}[{number}]"
        if ids.index(group.id) != number:
            yield f"{where}.id: {quoted(group.id)} is used twice"
        yield from _of_group(group, where)
        for attribute in group.attributes:
            for linked in {*(attribute.linked_groups or ())} - {*ids}:
                ref = quoted(attribute.attribute_ref)
                yield f"{where}: {ref} links to the group {quoted(linked)}, which does not exist"
    patients = [group for group in query.groups if group.type == PATIENT]
    if len(patients) != 1:
        yield f"{place}: exactly one Patient group is required, {len(patients)} found"
    if any(group.include_reference_only for group in patients):
        yield f"{place}: the Patient group cannot be includeReferenceOnly"


def _of_group(group: Group, place: str) -> Iterator[str]:
    if not group.attributes and not group.takes_all:
        why = "the sandbox has no profiles and supports a group without attributes for a base profile only"
        yield f"{place}.attributes: at least one entry is required to determine the group's type: {why}"
        return
    base = group.profile.removeprefix(BASE_PROFILE) if group.profile.startswith(BASE_PROFILE) else group.type
    if base in resource_types() - {group.type}:
        yield f"{place}.groupReference: is the profile of another type than the attributes' {group.type}"
    for number, attribute in enumerate(group.attributes):
        wrong = _wrong_with(attribute.attribute_ref, group.type)
        if wrong:
            yield f"{place}.attributes[{number}].attributeRef: {quoted(attribute.attribute_ref)} {wrong}"
    for number, each in enumerate(group.filter or ()):
        sort, table = ("token", TOKEN_FILTERS) if isinstance(each, TokenFilter) else ("date", DATE_FILTERS)
        known = table.get(group.type, {})
        if each.name not in known and group.type != PATIENT:
            text = f"{quoted(each.name)} is no supported {sort} parameter of {group.type}; known are {', '.join(known)}"
            yield f"{place}.filter[{number}].name: {text}"
    if sum(isinstance(each, DateFilter) for each in group.filter or ()) > 1:
        yield f"{place}.filter: at most one date filter is allowed"


def _wrong_with(ref: str, kind: str) -> str | None:
    first, *steps = ref.split(".")
    if first not in resource_types() or not steps:
        return "is not an element of a resource type"
    if first != kind:
        return f"is not of the group's type {kind}"
    for step in steps:
        name, _, slice_name = step.partition(":")
        if not _STEP.fullmatch(step):
            return "is not an element path"
        types = {name.removesuffix("[x]") + choice for choice in CHOICES} if name.endswith("[x]") else set()
        if slice_name and slice_name not in types:
            return "is a slice, which the sandbox cannot look up without profiles"
    return None
