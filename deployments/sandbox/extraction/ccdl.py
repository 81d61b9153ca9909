"""CCDL, the cohort query: its model, and reading it (document 3 §3).

Only what the cohort evaluation honours is accepted; anything else is a finding. A code matches when system and code
are equal: the sandbox has no terminology server, so a code does not stand for those below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

from deployments.sandbox.extraction.contexts import (
    AGE,
    ATTRIBUTES,
    CONTEXT_SYSTEM,
    CONTEXTS,
    GENDER,
    UNITS_OF_AGE,
    Attribute,
    Context,
)
from deployments.sandbox.extraction.dates import Days
from deployments.sandbox.extraction.findings import Findings, join, quoted
from deployments.sandbox.extraction.tree import number

Code = tuple[str, str]
"""System and code."""

COMPARATORS = ("gt", "ge", "lt", "le", "eq")
MAX_DEPTH = 10
"""How deep criteria may refer to criteria."""


class FilterKind(StrEnum):
    """The kinds of value filters."""

    CONCEPT = "concept"
    COMPARATOR = "quantity-comparator"
    RANGE = "quantity-range"


@dataclass(frozen=True)
class ValueFilter:
    """What a value must be: one of the concepts, or a quantity within limits."""

    kind: FilterKind
    concepts: frozenset[Code] = frozenset()
    comparator: str = "eq"
    low: Decimal = Decimal(0)
    """The value of a comparator, or the lower limit of a range."""
    high: Decimal = Decimal(0)
    unit: str | None = None


@dataclass(frozen=True)
class AttributeFilter:
    """A condition on another element of the resource: on its value, or on a resource that it refers to."""

    attribute: Attribute
    value: ValueFilter | None = None
    criteria: tuple[Criterion, ...] = ()
    """At least one of these must be true of a resource that the element refers to."""


@dataclass(frozen=True)
class Criterion:
    """One resource of the context's type must have one of the codes and pass every filter."""

    context: Context
    codes: tuple[Code, ...]
    value: ValueFilter | None = None
    attributes: tuple[AttributeFilter, ...] = ()
    time: Days | None = None

    @property
    def is_gender(self) -> bool:
        """Whether it asks for the patient's gender."""
        return self.context.type == "Patient" and self.codes == (GENDER,)


Criteria = tuple[tuple[Criterion, ...], ...]


@dataclass(frozen=True)
class Cohort:
    """Patients that meet the inclusion (AND of ORs) and not the exclusion (OR of ANDs)."""

    inclusion: Criteria
    exclusion: Criteria = ()

    @property
    def needs_consent(self) -> bool:
        """Whether consent decides about the extraction: an Einwilligung criterion includes people."""
        return any(criterion.context.type == "Consent" for group in self.inclusion for criterion in group)


_HARMLESS = ("display", "name", "id", "comment")


def read_ccdl(node: object, place: str, findings: Findings) -> Cohort | None:
    """Read a cohort query; what is wrong with it goes into ``findings``, and the result is only good without any."""
    document = findings.mapping(node, place)
    if document is None:
        return None
    check_version(document, place, "2", findings)
    inclusion = _groups(document, "inclusionCriteria", place, findings, least=1)
    exclusion = _groups(document, "exclusionCriteria", place, findings, least=0)
    return Cohort(inclusion, exclusion)


def check_version(document: dict[str, Any], place: str, number: str, findings: Findings) -> None:
    """``version`` is a number, or the URL of a schema."""
    version = findings.text(document, "version", place)
    if version is not None and version != number and not version.startswith(("http://", "https://")):
        findings.add(join(place, "version"), f"{quoted(version)} is not supported; {number} or a URL is expected")


def _groups(document: dict[str, Any], key: str, place: str, findings: Findings, least: int) -> Criteria:
    groups = []
    for where, group in findings.items(document, key, place, least=least):
        if not isinstance(group, list) or not group:
            findings.add(where, "a list with at least one criterion is expected")
            continue
        read = [_criterion(item, f"{where}[{index}]", findings, 0) for index, item in enumerate(group)]
        groups.append(tuple(criterion for criterion in read if criterion is not None))
    return tuple(groups)


def _criterion(node: object, place: str, findings: Findings, depth: int) -> Criterion | None:
    item = findings.mapping(node, place)
    if item is None:
        return None
    if depth > MAX_DEPTH:
        findings.add(place, f"criteria refer to criteria more than {MAX_DEPTH} deep")
        return None
    keys = ("context", "termCodes", "valueFilter", "attributeFilters", "timeRestriction")
    findings.known(item, (*keys, *_HARMLESS), place)
    context = _context(item, place, findings)
    codes = _codes(item, "termCodes", place, findings, with_display=True)
    if context is None:
        return None
    if context.type == "Patient":
        return _about_person(item, context, codes, place, findings)
    for system, _ in codes:
        if context.type == "Consent" and system.startswith("fdpg.consent"):
            findings.add(
                join(place, "termCodes"), "combined consent codes are not supported; name the provisions' codes"
            )
    value = None
    if item.get("valueFilter") is not None:
        value = _value(item["valueFilter"], join(place, "valueFilter"), findings)
        if not context.has_value:
            findings.add(join(place, "valueFilter"), f"{context.name} has no value to filter by")
    attributes = [
        _attribute(entry, where, context, findings, depth)
        for where, entry in findings.items(item, "attributeFilters", place)
    ]
    time = (
        _time(item["timeRestriction"], join(place, "timeRestriction"), findings) if "timeRestriction" in item else None
    )
    return Criterion(context, codes, value, tuple(entry for entry in attributes if entry is not None), time)


def _about_person(
    item: dict[str, Any], context: Context, codes: tuple[Code, ...], place: str, findings: Findings
) -> Criterion | None:
    for key in ("attributeFilters", "timeRestriction"):
        if item.get(key):
            findings.add(join(place, key), "is not supported for the context Patient")
    value = None
    if item.get("valueFilter") is not None:
        value = _value(item["valueFilter"], join(place, "valueFilter"), findings)
    if codes not in ((GENDER,), (AGE,)):
        findings.add(join(place, "termCodes"), "the context Patient knows one code: SNOMED CT 263495000 or 424144002")
        return None
    if value is not None and (value.kind is FilterKind.CONCEPT) != (codes == (GENDER,)):
        wanted = "a concept filter" if codes == (GENDER,) else "a quantity filter"
        findings.add(join(place, "valueFilter"), f"{wanted} is expected here")
    if value is not None and codes == (AGE,) and value.unit not in UNITS_OF_AGE:
        findings.add(join(place, "valueFilter.unit"), f"an age has one of the units {', '.join(UNITS_OF_AGE)}")
    return Criterion(context, codes, value)


def _context(item: dict[str, Any], place: str, findings: Findings) -> Context | None:
    where = join(place, "context")
    node = findings.mapping(item.get("context"), where)
    if node is None:
        return None
    code = findings.text(node, "code", where)
    if node.get("system") != CONTEXT_SYSTEM:
        findings.add(join(where, "system"), f"{CONTEXT_SYSTEM} is expected")
    if code is not None and code not in CONTEXTS:
        findings.add(where, f"{quoted(code)} is not supported; known are {', '.join(CONTEXTS)}")
    return CONTEXTS.get(code or "")


def _codes(
    node: dict[str, Any], key: str, place: str, findings: Findings, *, with_display: bool = False
) -> tuple[Code, ...]:
    """The codes of a list; the deployed server refuses a criterion's ones without a ``display``."""
    codes = []
    for where, entry in findings.items(node, key, place, least=1):
        coding = findings.mapping(entry, where)
        if coding is None:
            continue
        system, code = findings.text(coding, "system", where), findings.text(coding, "code", where)
        if with_display:
            findings.text(coding, "display", where)
        if system is not None and code is not None:
            codes.append((system, code))
    return tuple(dict.fromkeys(codes))


def _value(node: object, place: str, findings: Findings) -> ValueFilter | None:
    item = findings.mapping(node, place)
    kind = findings.text(item, "type", place) if item is not None else None
    if item is None or kind is None:
        return None
    match kind:
        case FilterKind.CONCEPT:
            findings.known(item, ("type", "selectedConcepts", *_HARMLESS), place)
            return ValueFilter(FilterKind.CONCEPT, frozenset(_codes(item, "selectedConcepts", place, findings)))
        case FilterKind.COMPARATOR:
            findings.known(item, ("type", "comparator", "value", "unit", *_HARMLESS), place)
            comparator = findings.text(item, "comparator", place)
            if comparator is not None and comparator not in COMPARATORS:
                findings.add(join(place, "comparator"), f"{quoted(comparator)} is none of {', '.join(COMPARATORS)}")
            low = _number(item, "value", place, findings)
            return ValueFilter(
                FilterKind.COMPARATOR, comparator=comparator or "", low=low, unit=_unit(item, place, findings)
            )
        case FilterKind.RANGE:
            findings.known(item, ("type", "minValue", "maxValue", "unit", *_HARMLESS), place)
            low, high = _number(item, "minValue", place, findings), _number(item, "maxValue", place, findings)
            if high < low:
                findings.add(join(place, "maxValue"), "is less than minValue")
            return ValueFilter(FilterKind.RANGE, low=low, high=high, unit=_unit(item, place, findings))
    findings.add(join(place, "type"), f"{quoted(kind)} is none of {', '.join(FilterKind)}")
    return None


def _number(item: dict[str, Any], key: str, place: str, findings: Findings) -> Decimal:
    value = number(item.get(key))
    if value is None:
        findings.add(join(place, key), "a number is expected")
    return value if value is not None else Decimal(0)


def _unit(item: dict[str, Any], place: str, findings: Findings) -> str | None:
    unit = item.get("unit")
    if unit is None:
        return None
    coding = findings.mapping(unit, join(place, "unit"))
    return findings.text(coding, "code", join(place, "unit")) if coding is not None else None


def _attribute(node: object, place: str, context: Context, findings: Findings, depth: int) -> AttributeFilter | None:
    item = findings.mapping(node, place)
    if item is None:
        return None
    coding = findings.mapping(item.get("attributeCode"), join(place, "attributeCode"))
    code = findings.text(coding, "code", join(place, "attributeCode")) if coding is not None else None
    known = ATTRIBUTES.get(context.type, {})
    attribute = known.get(code or "")
    if code is not None and attribute is None:
        findings.add(
            join(place, "attributeCode"),
            f"{quoted(code)} is not supported for {context.name}; known are {', '.join(sorted(known))}",
        )
    if item.get("type") == "reference":
        findings.known(item, ("type", "attributeCode", "criteria", *_HARMLESS), place)
        criteria = [
            _criterion(entry, where, findings, depth + 1)
            for where, entry in findings.items(item, "criteria", place, least=1)
        ]
        read = tuple(entry for entry in criteria if entry is not None)
        if attribute is not None and not attribute.is_reference:
            findings.add(place, f"{attribute.name} is no reference")
        if any(entry.context.type == "Patient" for entry in read):
            findings.add(join(place, "criteria"), "the context Patient cannot be referred to")
        return AttributeFilter(attribute, criteria=read) if attribute is not None else None
    if attribute is not None and attribute.is_reference:
        findings.add(place, f"{attribute.name} is a reference: a filter of type reference is expected")
    value = _value({key: entry for key, entry in item.items() if key != "attributeCode"}, place, findings)
    return AttributeFilter(attribute, value=value) if attribute is not None else None


def _time(node: object, place: str, findings: Findings) -> Days | None:
    item = findings.mapping(node, place)
    if item is None:
        return None
    findings.known(item, ("afterDate", "beforeDate"), place)
    after, before = findings.day(item, "afterDate", place), findings.day(item, "beforeDate", place)
    if item.get("afterDate") is None and item.get("beforeDate") is None:
        findings.add(place, "afterDate or beforeDate is expected")
    if after is not None and before is not None and before < after:
        findings.add(place, "beforeDate is before afterDate")
    whole = Days()
    return Days(after.toordinal() if after else whole.first, before.toordinal() if before else whole.last)
