"""A query as it is sent: a cohort query (CCDL) and the attribute groups of a CRTDL.

Structure and types are checked by reading it; a key that is unknown, and so could narrow the query, is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from operator import eq, ge, gt, le, lt
from typing import Annotated, Any, Final, Literal

import msgspec

from deployments.sandbox.extraction.dates import DayRange, days_of
from deployments.sandbox.extraction.vocabulary import CONTEXTS, Context, ElementPath, is_patients

BASE_PROFILE: Final = "http://hl7.org/fhir/StructureDefinition/"
_COMPARE: Final[dict[str, Callable[..., bool]]] = {"gt": gt, "ge": ge, "lt": lt, "le": le, "eq": eq}
Code = tuple[str, str]
"""System and code."""
_Text = Annotated[str, msgspec.Meta(pattern=r"\S")]
_Date = Annotated[str, msgspec.Meta(pattern=r"^\d{4}(-\d\d(-\d\d(T.*)?)?)?$")]
_Some = msgspec.Meta(min_length=1)


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A part of a query, with the keys that narrow nothing."""

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


def days_between(first: str | None, last: str | None) -> DayRange:
    """Return the days from one date to another, both inclusive. Raises ``ValueError`` for none, or the wrong order."""
    days = days_of({"start": first, "end": last})
    if days is None or any(given is not None and days_of(given) is None for given in (first, last)):
        raise ValueError("one date or two are needed, the later one not before the earlier one")
    return days


class Criterion(_Part, frozen=True, kw_only=True):
    """What one resource of a patient must be."""

    context: Coding
    term_codes: Codings
    value_filter: ValueFilter | None = None
    attribute_filters: tuple[AttributeFilter, ...] | None = None
    time_restriction: _TimeRestriction | None = None

    @property
    def known_context(self) -> Context:
        """Return the context; of a checked query it is known."""
        return CONTEXTS[self.context.code]

    @property
    def codes(self) -> frozenset[Code]:
        """Return the codes, of which a resource has one."""
        return codes_of(self.term_codes)

    @property
    def days(self) -> DayRange | None:
        """Return the days that the resource's date must overlap, or None."""
        limits = self.time_restriction
        return None if limits is None else days_between(limits.after_date, limits.before_date)


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

    @property
    def path(self) -> ElementPath:
        """Return the path below the resource; a type slice of a choice is the element of that type."""
        steps = self.attribute_ref.split(".")[1:]
        return tuple(step.partition(":")[2] or step for step in steps)


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


class _Extraction(msgspec.Struct, frozen=True, rename="camel"):
    attribute_groups: Annotated[tuple[Group, ...], _Some]


class Query(msgspec.Struct, frozen=True, rename="camel"):
    """A CRTDL."""

    version: Annotated[str, msgspec.Meta(pattern=r"^(1|https?://\S+)$")]
    cohort_definition: Cohort
    data_extraction: _Extraction

    @property
    def groups(self) -> tuple[Group, ...]:
        """Return the attribute groups."""
        return self.data_extraction.attribute_groups

    @property
    def needs_consent(self) -> bool:
        """Return whether a criterion of the context Einwilligung is among the inclusion criteria."""
        rows = self.cohort_definition.inclusion_criteria
        return any(criterion.known_context.type == "Consent" for row in rows for criterion in row)

    def label(self, group: Group) -> str:
        """Return the name of a group in reports: its id where it has no name or shares it with another group."""
        names = [each.name for each in self.groups]
        return group.name if group.name and names.count(group.name) == 1 else group.id
