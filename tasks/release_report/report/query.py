"""The query of a job in the release report: criteria of the cohort, and attribute groups.

Its texts come from the query, not from the data, so they may be shown in full. A document that cannot be read as a
CRTDL counts as no query.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.shared.errors import InputError
from tasks.shared.fhir.crtdl import parse_document, read_content
from tasks.shared.fhir.crtdl_model import type_of

CONSENT = "Consent"


@dataclass(frozen=True)
class Criterion:
    """One criterion of the cohort. ``row`` counts rows of the list it stands in: an AND of ORs for what is included, an
    OR of ANDs for what is ``excluded``."""

    row: int
    excluded: bool
    context: str
    term: str
    codes: tuple[str, ...]
    restriction: str = ""


@dataclass(frozen=True)
class QueryGroup:
    """An attribute group: how many attributes are required and optional, and what restricts it in words, such as codes
    and periods.
    """

    name: str
    profile: str
    type: str
    required: int
    optional: int
    filters: tuple[str, ...] = ()


@dataclass(frozen=True)
class EffectiveQuery:
    """The effective query."""

    title: str
    sha256: str
    criteria: tuple[Criterion, ...] = ()
    groups: tuple[QueryGroup, ...] = ()

    @property
    def types(self) -> frozenset[str]:
        """Resource types of the query."""
        return frozenset(group.type for group in self.groups)

    @property
    def codes(self) -> frozenset[str]:
        """All codes of the query, as ``system|code``."""
        named = [code for criterion in self.criteria for code in criterion.codes]
        return frozenset([*named, *(code for group in self.groups for code in group.filters)])

    @property
    def asks_for_consent(self) -> bool:
        """True if a criterion of the cohort is about consent."""
        return any(CONSENT.casefold() in criterion.context.casefold() for criterion in self.criteria)


def read_query(path: Path) -> EffectiveQuery | None:
    """Read the query in ``path``, the effective CRTDL. Return ``None`` if it cannot be read."""
    try:
        content = read_content(path)
        document = parse_document(content, path)
    except InputError:
        return None
    if not isinstance(document, dict):
        return None
    cohort = _object(document.get("cohortDefinition"))
    return EffectiveQuery(
        title=str(document.get("display") or cohort.get("display") or ""),
        sha256=hashlib.sha256(content).hexdigest(),
        criteria=(
            *_criteria(cohort.get("inclusionCriteria"), excluded=False),
            *_criteria(cohort.get("exclusionCriteria"), excluded=True),
        ),
        groups=tuple(_groups(document)),
    )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _coded(codings: Iterable[Any]) -> tuple[str, ...]:
    parts = (_object(coding) for coding in codings)
    return tuple(f"{part.get('system', '')}|{part.get('code', '')}" for part in parts if part.get("code"))


def _shown(codings: Iterable[Any]) -> str:
    parts = (_object(coding) for coding in codings)
    return ", ".join(str(part.get("display") or part.get("code") or "") for part in parts)


def _criteria(rows: Any, *, excluded: bool) -> Iterator[Criterion]:
    for number, row in enumerate(_list(rows), start=1):
        for one in map(_object, _list(row)):
            context = _object(one.get("context"))
            terms = _list(one.get("termCodes"))
            yield Criterion(
                row=number,
                excluded=excluded,
                context=str(context.get("display") or context.get("code") or ""),
                term=_shown(terms),
                codes=_coded(terms),
                restriction="; ".join(filter(None, _restrictions(one))),
            )


def _restrictions(criterion: Mapping[str, Any]) -> Iterator[str]:
    yield _value(_object(criterion.get("valueFilter")))
    for attribute in map(_object, _list(criterion.get("attributeFilters"))):
        name = _shown([attribute.get("attributeCode")])
        yield f"{name} {_value(attribute)}".strip()
    yield _period(_object(criterion.get("timeRestriction")), "afterDate", "beforeDate")


_COMPARATORS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤", "eq": "="}


def _value(value: Mapping[str, Any]) -> str:
    unit = str(_object(value.get("unit")).get("code") or "")
    match value.get("type"):
        case "concept":
            return _shown(_list(value.get("selectedConcepts")))
        case "quantity-comparator":
            sign = _COMPARATORS.get(str(value.get("comparator")), "")
            return f"{sign} {value.get('value')} {unit}".strip()
        case "quantity-range":
            return f"{value.get('minValue')} – {value.get('maxValue')} {unit}".strip()
    return ""


def _period(period: Mapping[str, Any], first: str, last: str) -> str:
    begin, end = str(period.get(first) or "")[:10], str(period.get(last) or "")[:10]
    return f"{begin or '…'} – {end or '…'}" if begin or end else ""


def _groups(document: Mapping[str, Any]) -> Iterator[QueryGroup]:
    for group in map(_object, _list(_object(document.get("dataExtraction")).get("attributeGroups"))):
        attributes = [one for one in map(_object, _list(group.get("attributes"))) if one.get("attributeRef")]
        required = sum(one.get("mustHave") is True for one in attributes)
        yield QueryGroup(
            name=str(group.get("name") or group.get("id") or ""),
            profile=str(group.get("groupReference") or ""),
            type=type_of(str(attributes[0]["attributeRef"])) if attributes else "",
            required=required,
            optional=len(attributes) - required,
            filters=tuple(_filters(group)),
        )


def _filters(group: Mapping[str, Any]) -> Iterator[str]:
    for one in map(_object, _list(group.get("filter"))):
        if one.get("type") == "date":
            yield f"{one.get('name')} {_period(one, 'start', 'end')}".strip()
        else:
            yield from _coded(_list(one.get("codes")))
