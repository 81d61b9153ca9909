"""Evaluates a cohort query over the index: which patients meet the inclusion and not the exclusion.

Rules: document 3 §3. A criterion is true of a patient when one resource meets all of it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from datetime import date

from deployments.sandbox.common.r4 import LITERAL
from deployments.sandbox.extraction.ccdl import AttributeFilter, Cohort, Criterion, FilterKind, ValueFilter
from deployments.sandbox.extraction.contexts import Attribute
from deployments.sandbox.extraction.dates import age, days_of
from deployments.sandbox.extraction.reader import Place, Reader
from deployments.sandbox.extraction.scan import REFERS
from deployments.sandbox.extraction.tree import Node, codings, has_code, number, values
from deployments.sandbox.extraction.types import CODES, DATES

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
    """Evaluates one cohort. ``check`` is called often and may raise to give up."""

    def __init__(self, reader: Reader, today: date, check: Check = lambda: None) -> None:
        self._reader = reader
        self._today = today
        self._check = check

    def patients(self, cohort: Cohort) -> list[str]:
        """Ids of the patients, sorted."""
        selected = set(self._reader.patients())
        for alternatives in cohort.inclusion:
            selected &= set[str]().union(*(self._meeting(criterion) for criterion in alternatives))
        for conditions in cohort.exclusion:
            excluded = [self._meeting(criterion) for criterion in conditions]
            selected -= excluded[0].intersection(*excluded[1:])
        return sorted(selected)

    def _meeting(self, criterion: Criterion) -> set[str]:
        self._check()
        if criterion.context.type == "Patient":
            return self._persons(criterion)
        met: set[str] = set()
        for place in self._candidates(criterion):
            if place.patient is None or place.patient in met:
                continue
            if criterion.value is None and not criterion.attributes:
                met.add(place.patient)
                continue
            self._check()
            if self._passes(self._reader.load(place), criterion):
                met.add(place.patient)
        return met

    def _candidates(self, criterion: Criterion) -> Iterator[Place]:
        kind = criterion.context.type
        codes = list(criterion.codes)
        if CODES[kind].reference is not None:
            codes += [(REFERS, place.id) for place in self._reader.with_codes("Medication", criterion.codes)]
        return self._reader.with_codes(kind, codes, criterion.time)

    def _persons(self, criterion: Criterion) -> set[str]:
        met = set()
        for place in self._reader.of_type("Patient"):
            self._check()
            node = self._reader.load(place)
            if self._has_gender(node, criterion) if criterion.is_gender else self._has_age(node, criterion):
                met.add(place.id)
        return met

    @staticmethod
    def _has_gender(node: Node, criterion: Criterion) -> bool:
        gender = node.get("gender")
        if not isinstance(gender, str) or criterion.value is None:
            return isinstance(gender, str)
        return (_ADMINISTRATIVE_GENDER, gender) in criterion.value.concepts

    def _has_age(self, node: Node, criterion: Criterion) -> bool:
        born = days_of(node.get("birthDate"))
        if born is None or criterion.value is None:
            return born is not None
        years = age(date.fromordinal(born.first), self._today, criterion.value.unit or "a")
        return _within(criterion.value, years)

    def _passes(self, node: Node, criterion: Criterion) -> bool:
        if criterion.value is not None and not _has_value(values(node, ("value[x]",)), criterion.value):
            return False
        return all(self._has_attribute(node, condition) for condition in criterion.attributes)

    def _has_attribute(self, node: Node, condition: AttributeFilter) -> bool:
        found = _elements(node, condition.attribute)
        if condition.value is not None:
            return _has_value(found, condition.value)
        return any(self._leads_to(value, condition.criteria) for value in found)

    def _leads_to(self, value: object, criteria: Iterable[Criterion]) -> bool:
        reference = value.get("reference") if isinstance(value, dict) else None
        match = LITERAL.fullmatch(reference) if isinstance(reference, str) else None
        place = self._reader.find(match[1], match[2]) if match else None
        if place is None:
            return False
        node = self._reader.load(place)
        return any(self._is_met_by(place, node, criterion) for criterion in criteria)

    def _is_met_by(self, place: Place, node: Node, criterion: Criterion) -> bool:
        kind = criterion.context.type
        if place.type != kind or not self._has_criterion_code(node, criterion):
            return False
        if criterion.time is not None:
            days = (days_of(value) for value in values(node, DATES[kind][0]))
            if not any(found is not None and found.overlaps(criterion.time) for found in days):
                return False
        return self._passes(node, criterion)

    def _has_criterion_code(self, node: Node, criterion: Criterion) -> bool:
        where = CODES[criterion.context.type]
        if any(set(codings(value)) & set(criterion.codes) for value in values(node, where.path)):
            return True
        for value in values(node, where.reference) if where.reference else ():
            reference = value.get("reference") if isinstance(value, dict) else None
            match = LITERAL.fullmatch(reference) if isinstance(reference, str) else None
            place = self._reader.find(match[1], match[2]) if match else None
            if place is None:
                continue
            medication = self._reader.load(place)
            if any(set(codings(code)) & set(criterion.codes) for code in values(medication, ("code",))):
                return True
        return False


def _elements(node: Node, attribute: Attribute) -> Iterator[object]:
    for value in values(node, attribute.path):
        if attribute.extension is None:
            yield value
        elif isinstance(value, dict) and value.get("url") == attribute.extension:
            yield from values(value, ("value[x]",))


def _has_value(found: Iterable[object], wanted: ValueFilter) -> bool:
    if wanted.kind is FilterKind.CONCEPT:
        return any(has_code(value, wanted.concepts) for value in found)
    return any(_has_quantity(value, wanted) for value in found)


def _has_quantity(value: object, wanted: ValueFilter) -> bool:
    # "< 5" is no number to compare with.
    if not isinstance(value, dict) or value.get("comparator") is not None:
        return False
    if wanted.unit is not None and wanted.unit != (value.get("code") or value.get("unit")):
        return False
    amount = number(value.get("value"))
    return amount is not None and _within(wanted, amount)


def _within(wanted: ValueFilter, amount: object) -> bool:
    if wanted.kind is FilterKind.RANGE:
        return bool(_COMPARE["ge"](amount, wanted.low) and _COMPARE["le"](amount, wanted.high))
    return _COMPARE[wanted.comparator](amount, wanted.low)
