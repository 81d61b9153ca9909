"""Evaluate a cohort query over the index: patients who meet the inclusion and not the exclusion criteria.

Rules: document 3 §3. A patient meets a criterion if one resource meets all parts of the criterion.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from decimal import Decimal

from deployments.sandbox.common.r4 import LITERAL
from deployments.sandbox.extraction.dates import DayRange, age, days_of
from deployments.sandbox.extraction.query import codes_of, days_between
from deployments.sandbox.extraction.query_model import (
    AttributeFilter,
    CohortCriterion,
    CohortDefinition,
    CriterionFilter,
)
from deployments.sandbox.extraction.reader import ResourceLocation, ResourceReader
from deployments.sandbox.extraction.scan import REFERS
from deployments.sandbox.extraction.tree import Node, codings, has_code, number, values
from deployments.sandbox.extraction.types import ATTRIBUTES, CODES, CONTEXTS, DATES, GENDER, PATIENT, CriterionAttribute

_COMPARE: dict[str, Callable[..., bool]] = {
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
}
_ADMINISTRATIVE_GENDER = "http://hl7.org/fhir/administrative-gender"
Check = Callable[[], None]


class CohortQuery:
    """Evaluates one cohort. ``check`` is called often and may raise to stop the evaluation."""

    def __init__(self, reader: ResourceReader, today: date, check: Check = lambda: None) -> None:
        self._reader = reader
        self._today = today
        self._check = check

    def patients(self, cohort: CohortDefinition) -> list[str]:
        """Return the ids of the patients, sorted."""
        selected = set(self._reader.patients())
        for alternatives in cohort.inclusion_criteria:
            selected &= set[str]().union(*(self._meeting(criterion) for criterion in alternatives))
        for conditions in cohort.exclusion_criteria or ():
            excluded = [self._meeting(criterion) for criterion in conditions]
            selected -= excluded[0].intersection(*excluded[1:])
        return sorted(selected)

    def _meeting(self, criterion: CohortCriterion) -> set[str]:
        self._check()
        if _type(criterion) == PATIENT:
            return self._persons(criterion)
        met: set[str] = set()
        for place in self._candidates(criterion):
            if place.patient is None or place.patient in met:
                continue
            if criterion.value_filter is None and not criterion.attribute_filters:
                met.add(place.patient)
                continue
            self._check()
            if self._passes(self._reader.load(place), criterion):
                met.add(place.patient)
        return met

    def _candidates(self, criterion: CohortCriterion) -> Iterator[ResourceLocation]:
        kind, codes = _type(criterion), [*codes_of(criterion.term_codes)]
        if CODES[kind].reference is not None:
            codes += [(REFERS, place.id) for place in self._reader.with_codes("Medication", codes)]
        return self._reader.with_codes(kind, codes, _time(criterion))

    def _persons(self, criterion: CohortCriterion) -> set[str]:
        met = set()
        wanted = self._has_gender if codes_of(criterion.term_codes) == (GENDER,) else self._has_age
        for place in self._reader.of_type(PATIENT):
            self._check()
            if wanted(self._reader.load(place), criterion.value_filter):
                met.add(place.id)
        return met

    @staticmethod
    def _has_gender(node: Node, wanted: CriterionFilter | None) -> bool:
        gender = node.get("gender")
        if not isinstance(gender, str) or wanted is None:
            return isinstance(gender, str)
        return (_ADMINISTRATIVE_GENDER, gender) in codes_of(wanted.selected_concepts)

    def _has_age(self, node: Node, wanted: CriterionFilter | None) -> bool:
        born = days_of(node.get("birthDate"))
        if born is None or wanted is None:
            return born is not None
        years = age(date.fromordinal(born.first), self._today, wanted.unit.code if wanted.unit else "a")
        return _within(wanted, Decimal(years))

    def _passes(self, node: Node, criterion: CohortCriterion) -> bool:
        if criterion.value_filter is not None and not _has_value(values(node, ("value[x]",)), criterion.value_filter):
            return False
        known = ATTRIBUTES.get(_type(criterion), {})
        return all(
            self._has_attribute(_elements(node, known[condition.attribute_code.code]), condition)
            for condition in criterion.attribute_filters or ()
        )

    def _has_attribute(self, found: Iterable[object], condition: AttributeFilter) -> bool:
        if condition.type != "reference":
            return _has_value(found, condition)
        return any(self._leads_to(value, condition.criteria) for value in found)

    def _leads_to(self, value: object, criteria: Iterable[CohortCriterion]) -> bool:
        reference = value.get("reference") if isinstance(value, dict) else None
        match = LITERAL.fullmatch(reference) if isinstance(reference, str) else None
        place = self._reader.find(match[1], match[2]) if match else None
        if place is None:
            return False
        node = self._reader.load(place)
        return any(self._is_met_by(place, node, criterion) for criterion in criteria)

    def _is_met_by(self, place: ResourceLocation, node: Node, criterion: CohortCriterion) -> bool:
        kind, time = _type(criterion), _time(criterion)
        if place.type != kind or not self._has_criterion_code(node, criterion):
            return False
        if time is not None:
            days = (days_of(value) for value in values(node, DATES[kind][0]))
            if not any(found is not None and found.overlaps(time) for found in days):
                return False
        return self._passes(node, criterion)

    def _has_criterion_code(self, node: Node, criterion: CohortCriterion) -> bool:
        where, codes = CODES[_type(criterion)], set(codes_of(criterion.term_codes))
        if any(codes.intersection(codings(value)) for value in values(node, where.path)):
            return True
        for value in values(node, where.reference) if where.reference else ():
            reference = value.get("reference") if isinstance(value, dict) else None
            match = LITERAL.fullmatch(reference) if isinstance(reference, str) else None
            place = self._reader.find(match[1], match[2]) if match else None
            if place is None:
                continue
            medication = self._reader.load(place)
            if any(codes.intersection(codings(code)) for code in values(medication, ("code",))):
                return True
        return False


def _type(criterion: CohortCriterion) -> str:
    return CONTEXTS[criterion.context.code].type


def _time(criterion: CohortCriterion) -> DayRange | None:
    limits = criterion.time_restriction
    return None if limits is None else days_between(limits.after_date, limits.before_date)


def _elements(node: Node, attribute: CriterionAttribute) -> Iterator[object]:
    for value in values(node, attribute.path):
        if attribute.extension is None:
            yield value
        elif isinstance(value, dict) and value.get("url") == attribute.extension:
            yield from values(value, ("value[x]",))


def _has_value(found: Iterable[object], wanted: CriterionFilter) -> bool:
    if wanted.type == "concept":
        concepts = codes_of(wanted.selected_concepts)
        return any(has_code(value, concepts) for value in found)
    return any(_has_quantity(value, wanted) for value in found)


def _has_quantity(value: object, wanted: CriterionFilter) -> bool:
    # "< 5" is not a number to compare with.
    if not isinstance(value, dict) or value.get("comparator") is not None:
        return False
    if wanted.unit is not None and wanted.unit.code != (value.get("code") or value.get("unit")):
        return False
    amount = number(value.get("value"))
    return amount is not None and _within(wanted, amount)


def _within(wanted: CriterionFilter, amount: Decimal) -> bool:
    # The shortest text of a float is the decimal in the query.
    if wanted.type == "quantity-range":
        return Decimal(repr(wanted.min_value)) <= amount <= Decimal(repr(wanted.max_value))
    return _COMPARE[wanted.comparator](amount, Decimal(repr(wanted.value)))
