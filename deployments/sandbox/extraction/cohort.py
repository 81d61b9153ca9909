"""Evaluate a cohort query: the patients who meet the inclusion and not the exclusion criteria.

A patient meets a criterion if one resource meets all parts of the criterion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final

from deployments.sandbox.extraction.data import DataSet, Resource
from deployments.sandbox.extraction.dates import age, days_of
from deployments.sandbox.extraction.query import (
    AttributeFilter,
    Cohort,
    ConceptFilter,
    Criterion,
    QuantityFilter,
    ReferenceFilter,
    ValueFilter,
    codes_of,
)
from deployments.sandbox.extraction.tree import Node, codings, has_code, number, values
from deployments.sandbox.extraction.vocabulary import DATES, GENDER, IN_EXTENSIONS, MEDICATION, PATIENT

_ADMINISTRATIVE_GENDER: Final = "http://hl7.org/fhir/administrative-gender"


@dataclass(frozen=True)
class CohortQuery:
    """Evaluates cohorts as of a day."""

    data: DataSet
    today: date

    def patients(self, cohort: Cohort) -> list[str]:
        """Return the ids of the patients, sorted."""
        selected = set(self.data.patients())
        for alternatives in cohort.inclusion_criteria:
            selected &= set[str]().union(*(self._meeting(criterion) for criterion in alternatives))
        for conditions in cohort.exclusion_criteria or ():
            excluded = [self._meeting(criterion) for criterion in conditions]
            selected -= excluded[0].intersection(*excluded[1:])
        return sorted(selected)

    def _meeting(self, criterion: Criterion) -> set[str]:
        met: set[str] = set()
        kind = criterion.known_context.type
        meets = self._person_meets if kind == PATIENT else self._meets
        for resource in self.data.of_type(kind):
            if not met.issuperset(resource.owners) and meets(resource, criterion):
                met.update(resource.owners)
        return met

    def _person_meets(self, resource: Resource, criterion: Criterion) -> bool:
        node, wanted = resource.node(), criterion.value_filter
        if criterion.codes == {GENDER}:
            gender = node.get("gender")
            if not isinstance(gender, str) or not isinstance(wanted, ConceptFilter):
                return isinstance(gender, str)
            return (_ADMINISTRATIVE_GENDER, gender) in codes_of(wanted.selected_concepts)
        born = days_of(node.get("birthDate"))
        if born is None or not isinstance(wanted, QuantityFilter):
            return born is not None
        unit = wanted.unit.code if wanted.unit else "a"
        return wanted.contains(Decimal(age(date.fromordinal(born.first), self.today, unit)))

    def _meets(self, resource: Resource, criterion: Criterion) -> bool:
        context, time, node = criterion.known_context, criterion.days, resource.node()
        if resource.type != context.type or not self._has_criterion_code(node, criterion):
            return False
        if time is not None:
            days = (days_of(value) for value in values(node, DATES[context.type][0]))
            if not any(found is not None and found.overlaps(time) for found in days):
                return False
        if criterion.value_filter is not None and not _has_value(values(node, ("value[x]",)), criterion.value_filter):
            return False
        return all(self._has_attribute(node, each) for each in criterion.attribute_filters or ())

    def _has_criterion_code(self, node: Node, criterion: Criterion) -> bool:
        codes = criterion.codes
        if any(codes.intersection(codings(value)) for value in values(node, criterion.known_context.code.split("."))):
            return True
        medications = (self._referred(value) for value in values(node, MEDICATION))
        found = (value for each in medications if each is not None for value in values(each.node(), ("code",)))
        return any(codes.intersection(codings(value)) for value in found)

    def _has_attribute(self, node: Node, wanted: AttributeFilter) -> bool:
        found = _elements(node, wanted.attribute)
        if not isinstance(wanted, ReferenceFilter):
            return _has_value(found, wanted)
        targets = [target for value in found if (target := self._referred(value)) is not None]
        return any(self._meets(target, criterion) for target in targets for criterion in wanted.criteria)

    def _referred(self, value: object) -> Resource | None:
        return self.data.find(value.get("reference")) if isinstance(value, dict) else None


def _elements(node: Node, attribute: str) -> Iterator[object]:
    url = IN_EXTENSIONS.get(attribute)
    if url is None:
        yield from values(node, attribute.split("."))
        return
    for extension in values(node, ("extension",)):
        if isinstance(extension, dict) and extension.get("url") == url:
            yield from values(extension, ("value[x]",))


def _has_value(found: Iterable[object], wanted: ValueFilter) -> bool:
    if isinstance(wanted, ConceptFilter):
        return any(has_code(value, codes_of(wanted.selected_concepts)) for value in found)
    return any(_has_quantity(value, wanted) for value in found)


def _has_quantity(value: object, wanted: QuantityFilter) -> bool:
    # "< 5" is not a number to compare with.
    if not isinstance(value, dict) or value.get("comparator") is not None:
        return False
    if wanted.unit is not None and wanted.unit.code != (value.get("code") or value.get("unit")):
        return False
    amount = number(value.get("value"))
    return amount is not None and wanted.contains(amount)
