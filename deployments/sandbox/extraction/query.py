"""A query as it is sent: a cohort query (CCDL) and the attribute groups of a CRTDL.

Reading a query checks it. Unsupported parts are refused with their place, and so are unknown keys, which could narrow
the query. Without profiles, the sandbox identifies an element by its path only: it supports type slices of
choice elements (``value[x]:valueQuantity``) and no others. Without a terminology server, a code matches only if system
and code are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import cached_property
from operator import eq, ge, gt, le, lt
from typing import Annotated, Any, Final, Literal

import msgspec

from deployments.sandbox.extraction.dates import DayRange, days_between
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
    ElementPath,
    is_patients,
)
from deployments.sandbox.r4 import resource_types
from deployments.sandbox.service import FhirProblem, quoted

BASE_PROFILE: Final = "http://hl7.org/fhir/StructureDefinition/"
_COMPARE: Final[dict[str, Callable[..., bool]]] = {"gt": gt, "ge": ge, "lt": lt, "le": le, "eq": eq}
Code = tuple[str, str]
"""System and code."""
_Text = Annotated[str, msgspec.Meta(pattern=r"\S")]
_Date = Annotated[str, msgspec.Meta(pattern=r"^\d{4}(-\d\d(-\d\d(T.*)?)?)?$")]
_Some = msgspec.Meta(min_length=1)


def refused(reason: str) -> FhirProblem:
    """Return the refusal of a request that is wrong or not supported."""
    return FhirProblem(400, "invalid", reason, severity="fatal")


def _refuse(problems: Iterator[str]) -> None:
    """Raise ``ValueError`` for the first problem; msgspec adds the place."""
    for problem in problems:
        raise ValueError(problem)


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of the parts of a query. Its own keys do not narrow the query."""

    display: Any = None
    name: Any = None
    id: Any = None
    comment: Any = None
    version: Any = None


class Coding(_Part, frozen=True, kw_only=True):
    """A code."""

    system: _Text
    code: _Text


Codings = Annotated[tuple[Coding, ...], _Some]


def codes_of(codings: tuple[Coding, ...]) -> frozenset[Code]:
    """Return system and code of each."""
    return frozenset((coding.system, coding.code) for coding in codings)


class _Unit(_Part, frozen=True, kw_only=True):
    code: _Text


class _Filter(_Part, frozen=True, kw_only=True, tag_field="type"):
    attribute_code: Coding | None = None
    """The element of an attribute filter; a value filter has none."""

    @property
    def attribute(self) -> str:
        """Return the name of the element, empty for a value filter."""
        return "" if self.attribute_code is None else self.attribute_code.code


class ConceptFilter(_Filter, frozen=True, kw_only=True, tag="concept"):
    """One of some codes."""

    selected_concepts: Codings


class ComparatorFilter(_Filter, frozen=True, kw_only=True, tag="quantity-comparator"):
    """A quantity on one side of a value."""

    comparator: Literal["gt", "ge", "lt", "le", "eq"]
    value: Decimal
    unit: _Unit | None = None

    def contains(self, amount: Decimal) -> bool:
        """Return whether an amount is within the limit."""
        return _COMPARE[self.comparator](amount, self.value)


class RangeFilter(_Filter, frozen=True, kw_only=True, tag="quantity-range"):
    """A quantity between two values."""

    min_value: Decimal
    max_value: Decimal
    unit: _Unit | None = None

    def __post_init__(self) -> None:
        if self.max_value < self.min_value:
            raise ValueError("maxValue is below minValue")

    def contains(self, amount: Decimal) -> bool:
        """Return whether an amount is within the limits."""
        return self.min_value <= amount <= self.max_value


class ReferenceFilter(_Filter, frozen=True, kw_only=True, tag="reference"):
    """A reference to a resource that meets one of some criteria."""

    criteria: Annotated[tuple[Criterion, ...], _Some]


QuantityFilter = ComparatorFilter | RangeFilter
ValueFilter = ConceptFilter | ComparatorFilter | RangeFilter
AttributeFilter = ConceptFilter | ComparatorFilter | RangeFilter | ReferenceFilter


class _TimeRestriction(_Part, frozen=True, kw_only=True):
    after_date: _Date | None = None
    before_date: _Date | None = None

    def __post_init__(self) -> None:
        days_between(self.after_date, self.before_date)


class Criterion(_Part, frozen=True, kw_only=True, dict=True):
    """Conditions that one resource of a patient must meet."""

    context: Coding
    term_codes: Codings
    value_filter: ValueFilter | None = None
    attribute_filters: tuple[AttributeFilter, ...] | None = None
    time_restriction: _TimeRestriction | None = None

    def __post_init__(self) -> None:
        _refuse(_criterion_problems(self))

    @property
    def known_context(self) -> Context:
        """Return the context, which is known in a checked query."""
        return CONTEXTS[self.context.code]

    @cached_property
    def codes(self) -> frozenset[Code]:
        """Return the codes. A resource must have one of them."""
        return codes_of(self.term_codes)

    @cached_property
    def days(self) -> DayRange | None:
        """Return the days that the resource's date must overlap, or None."""
        limits = self.time_restriction
        return None if limits is None else days_between(limits.after_date, limits.before_date)


def _criterion_problems(criterion: Criterion) -> Iterator[str]:
    if not all(str(coding.display or "").strip() for coding in criterion.term_codes):
        yield "the display of a code must be a text"  # as the deployed server demands
    context = CONTEXTS.get(criterion.context.code)
    if context is None or criterion.context.system != CONTEXT_SYSTEM:
        known = ", ".join(CONTEXTS)
        yield f"the context {quoted(criterion.context.code)} is not supported; known are {known} of {CONTEXT_SYSTEM}"
        return
    if context.name == "Einwilligung" and any(system.startswith("fdpg.consent") for system, _ in criterion.codes):
        yield "combined consent codes are not supported; use the provisions' codes"
    if criterion.value_filter is not None and not context.has_value:
        yield f"{context.name} has no value to filter by"
    if context.type == PATIENT:
        yield from _person_problems(criterion)
        return
    for each in criterion.attribute_filters or ():
        is_reference = isinstance(each, ReferenceFilter)
        names = (context.references if is_reference else context.plain).split()
        if each.attribute not in names:
            what = "a reference" if is_reference else "an element"
            yield f"{quoted(each.attribute)} is not {what} to filter by; known are {', '.join(sorted(names))}"
        if isinstance(each, ReferenceFilter) and any(one.context.code == PATIENT for one in each.criteria):
            yield "the context Patient cannot be referred to"


def _person_problems(criterion: Criterion) -> Iterator[str]:
    codes, value = criterion.codes, criterion.value_filter
    if criterion.attribute_filters or criterion.time_restriction:
        yield "attributeFilters and timeRestriction are not supported for the context Patient"
    if codes not in ({GENDER}, {AGE}):
        yield "the context Patient supports one code: SNOMED CT 263495000 or 424144002"
    if isinstance(value, ConceptFilter) and codes == {AGE}:
        yield "the valueFilter must be a quantity filter"
    if isinstance(value, QuantityFilter) and codes == {GENDER}:
        yield "the valueFilter must be a concept filter"
    elif isinstance(value, QuantityFilter) and (value.unit is None or value.unit.code not in UNITS_OF_AGE):
        yield f"an age must have one of the units {', '.join(UNITS_OF_AGE)}"


_Row = Annotated[tuple[Criterion, ...], _Some]


class Cohort(_Part, frozen=True, kw_only=True):
    """A cohort query: inclusion is an AND of ORs, exclusion an OR of ANDs."""

    version: Annotated[str, msgspec.Meta(pattern=r"^(2|https?://\S+)$")]
    inclusion_criteria: Annotated[tuple[_Row, ...], _Some]
    exclusion_criteria: tuple[_Row, ...] | None = None


class Attribute(msgspec.Struct, frozen=True, rename="camel"):
    """An element to extract; ``linked_groups`` are the ids of the groups that its references can lead to."""

    attribute_ref: _Text
    must_have: bool
    linked_groups: tuple[_Text, ...] | None = None

    def __post_init__(self) -> None:
        _refuse(_attribute_problems(self.attribute_ref))

    @property
    def path(self) -> ElementPath:
        """Return the path below the resource; a type slice of a choice is the element of that type."""
        steps = self.attribute_ref.split(".")[1:]
        return tuple(step.partition(":")[2] or step for step in steps)


def _attribute_problems(ref: str) -> Iterator[str]:
    kind, *steps = ref.split(".")
    if kind not in resource_types() or not steps:
        yield f"{quoted(ref)} is not an element of a resource type"
    for step in steps:
        name, _, slice_name = step.partition(":")
        types = {name.removesuffix("[x]") + choice for choice in CHOICES} if name.endswith("[x]") else set()
        if slice_name and slice_name not in types:
            yield f"{quoted(ref)} is a slice, which the sandbox cannot look up without profiles"


class TokenFilter(_Part, frozen=True, kw_only=True, tag_field="type", tag="token"):
    """A search parameter has one of some codes."""

    name: _Text
    codes: Codings


class DateFilter(_Part, frozen=True, kw_only=True, tag_field="type", tag="date"):
    """The days of a search parameter overlap some days."""

    name: _Text
    start: _Date | None = None
    end: _Date | None = None

    def __post_init__(self) -> None:
        days_between(self.start, self.end)


class Group(msgspec.Struct, frozen=True, rename="camel"):
    """An attribute group: conditions for resources, and the elements to extract."""

    id: _Text
    group_reference: _Text
    attributes: tuple[Attribute, ...] = ()
    name: str | None = None
    include_reference_only: bool | None = None
    filter: tuple[TokenFilter | DateFilter, ...] | None = None

    def __post_init__(self) -> None:
        _refuse(_group_problems(self))

    @property
    def profile(self) -> str:
        """Return the profile without a version."""
        return self.group_reference.partition("|")[0]

    @property
    def type(self) -> str:
        """Return the type of its attributes, else of its base profile."""
        if self.attributes:
            return self.attributes[0].attribute_ref.partition(".")[0].partition(":")[0]
        return self.profile.removeprefix(BASE_PROFILE)

    @property
    def takes_all(self) -> bool:
        """Return whether the profile is the base profile of the type, to which every resource conforms."""
        return self.profile == BASE_PROFILE + self.type

    @property
    def of_patients(self) -> bool:
        """Return whether the group's resources belong to patients."""
        return is_patients(self.type)

    @property
    def must_have(self) -> bool:
        """Return whether any attribute is required (``mustHave``)."""
        return any(attribute.must_have for attribute in self.attributes)


def _group_problems(group: Group) -> Iterator[str]:
    if not group.attributes and not group.takes_all:
        why = "the sandbox has no profiles and supports a group without attributes for a base profile only"
        yield f"at least one entry is required to determine the group's type: {why}"
    for attribute in group.attributes:
        if attribute.attribute_ref.partition(".")[0] != group.type:
            yield f"{quoted(attribute.attribute_ref)} is not of the group's type {group.type}"
    filters = group.filter or () if group.type != PATIENT else ()  # those of the Patient group are ignored
    for each in filters:
        sort, table = ("token", TOKEN_FILTERS) if isinstance(each, TokenFilter) else ("date", DATE_FILTERS)
        known = table.get(group.type, {})
        if each.name not in known:
            yield f"{quoted(each.name)} is not a {sort} parameter of {group.type}; known are {', '.join(known)}"
    if sum(isinstance(each, DateFilter) for each in filters) > 1:
        yield "at most one date filter is allowed"


class _Extraction(msgspec.Struct, frozen=True, rename="camel"):
    attribute_groups: Annotated[tuple[Group, ...], _Some]


class Query(msgspec.Struct, frozen=True, rename="camel", dict=True):
    """A CRTDL."""

    version: Annotated[str, msgspec.Meta(pattern=r"^(1|https?://\S+)$")]
    cohort_definition: Cohort
    data_extraction: _Extraction

    def __post_init__(self) -> None:
        _refuse(_query_problems(self.groups))

    @property
    def groups(self) -> tuple[Group, ...]:
        """Return the attribute groups."""
        return self.data_extraction.attribute_groups

    @cached_property
    def by_id(self) -> dict[str, Group]:
        """Return id → group, in the order of the query."""
        return {group.id: group for group in self.groups}

    def direct(self, *, of_patients: bool) -> list[Group]:
        """Return the groups that select resources directly."""
        return [each for each in self.groups if not each.include_reference_only and each.of_patients == of_patients]

    @property
    def needs_consent(self) -> bool:
        """Return whether a criterion of the context Einwilligung is among the inclusion criteria."""
        rows = self.cohort_definition.inclusion_criteria
        return any(criterion.known_context.type == "Consent" for row in rows for criterion in row)

    def label(self, group: Group) -> str:
        """Return the name of a group in reports."""
        return group.name or group.id


def _query_problems(groups: tuple[Group, ...]) -> Iterator[str]:
    ids = [group.id for group in groups]
    for identity in ids:
        if ids.count(identity) > 1:
            yield f"the group id {quoted(identity)} is used twice"
    for attribute in (each for group in groups for each in group.attributes):
        for linked in {*(attribute.linked_groups or ())} - {*ids}:
            yield f"{quoted(attribute.attribute_ref)} links to the group {quoted(linked)}, which does not exist"
    patients = [group for group in groups if group.type == PATIENT]
    if len(patients) != 1:
        yield f"exactly one Patient group is required, {len(patients)} found"
    if any(group.include_reference_only for group in patients):
        yield "the Patient group cannot be includeReferenceOnly"


def read_query(body: bytes) -> Query:
    """Read a CRTDL. Raises ``FhirProblem`` 400."""
    try:
        return msgspec.json.decode(body, type=Query)
    except (ValueError, RecursionError) as error:
        raise refused(f"the query cannot be read: {error}") from None


def read_cohort(body: bytes) -> Cohort:
    """Read the cohort of a CRTDL, or a bare CCDL. Raises ``FhirProblem`` 400."""
    try:
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        return msgspec.json.decode(members.get("cohortDefinition", body), type=Cohort)
    except (ValueError, RecursionError) as error:
        raise refused(f"the cohort query cannot be read: {error}") from None
