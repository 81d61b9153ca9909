"""Read the query of a job, the summary of the extraction server, and the pseudonymization rules.

Texts of the query are no data, so they may be shown in full. A file that cannot be read counts as missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tasks.shared.errors import InputError
from tasks.shared.fhir.crtdl import parse_document, read_content, type_of

CONSENT: Final = "CONSENT"
"""Name of the stage in which the extraction server leaves out patients without consent."""

_COMPARATORS: Final = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤", "eq": "="}
_MOST_CODES: Final = 8


@dataclass(frozen=True)
class QueryGroup:
    """An attribute group: name, type, attributes, and filters in words."""

    name: str
    type: str
    attributes: str
    filters: str = ""


@dataclass(frozen=True)
class Query:
    """The effective query. ``included`` (an AND of ORs) and ``excluded`` have one line per criterion."""

    title: str
    sha256: str
    included: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    groups: tuple[QueryGroup, ...] = ()
    asks_for_consent: bool = False


@dataclass(frozen=True)
class ServerSummary:
    """Counts of the extraction server: patients of the cohort, those in the result, and those left out by reason."""

    cohort: int | None = None
    final: int | None = None
    excluded: Mapping[str, int] | None = None
    without_must_have: int = 0
    without_consent: int = 0
    """Resources."""


def read_query(path: Path | None) -> Query | None:
    """Read the query in ``path``, the effective CRTDL; ``None`` if there is none."""
    if path is None:
        return None
    try:
        content = read_content(path)
        document = parse_document(content, path)
    except InputError:
        return None
    if not isinstance(document, dict):
        return None
    cohort = _object(document.get("cohortDefinition"))
    included, excluded = (_list(cohort.get(f"{name}Criteria")) for name in ("inclusion", "exclusion"))
    return Query(
        title=str(document.get("display") or cohort.get("display") or ""),
        sha256=hashlib.sha256(content).hexdigest(),
        included=tuple(" or ".join(map(_criterion, row)) for row in map(_objects, included)),
        excluded=tuple(" and ".join(map(_criterion, row)) for row in map(_objects, excluded)),
        groups=tuple(_groups(document)),
        asks_for_consent=any("consent" in _context(one).casefold() for row in included for one in _objects(row)),
    )


def read_summary(path: Path) -> ServerSummary | None:
    """Read ``job-summary.json`` of the extraction server; ``None`` if there is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict):
        return None
    stages = {name: n for name, n in _object(found.get("Patient-Exclusions")).items() if isinstance(n, int)}
    groups = [_object(group) for group in _object(found.get("Resource-Exclusions")).values()]
    return ServerSummary(
        cohort=_number(found.get("Num-Cohort-Patients")),
        final=_number(found.get("Num-Final-Patients")),
        excluded=stages,
        without_must_have=sum(
            n for group in groups for n in _object(group.get("Must-Have")).values() if isinstance(n, int)
        ),
        without_consent=sum(_number(group.get("Consent")) or 0 for group in groups),
    )


def read_rules(path: Path | None) -> tuple[str, str] | None:
    """Return name and SHA-256 of the anonymization file; ``None`` if there is none."""
    try:
        return (path.name, hashlib.sha256(path.read_bytes()).hexdigest()) if path is not None else None
    except OSError:
        return None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in _list(value) if isinstance(one, dict)]


def _shown(codings: Iterable[Any]) -> str:
    parts = [str(part.get("display") or part.get("code") or "") for part in map(_object, codings)]
    more = len(parts) - _MOST_CODES
    return ", ".join(parts[:_MOST_CODES]) + (f" … (+{more:,})" if more > 0 else "")


def _context(criterion: Mapping[str, Any]) -> str:
    context = _object(criterion.get("context"))
    return str(context.get("display") or context.get("code") or "")


def _criterion(criterion: Mapping[str, Any]) -> str:
    limits = "; ".join(filter(None, _restrictions(criterion)))
    named = ": ".join(filter(None, (_context(criterion), _shown(_list(criterion.get("termCodes"))))))
    return f"{named} ({limits})" if limits else named


def _restrictions(criterion: Mapping[str, Any]) -> Iterator[str]:
    yield _value(_object(criterion.get("valueFilter")))
    for attribute in _objects(criterion.get("attributeFilters")):
        yield f"{_shown([attribute.get('attributeCode')])} {_value(attribute)}".strip()
    yield _period(_object(criterion.get("timeRestriction")), "afterDate", "beforeDate")


def _value(value: Mapping[str, Any]) -> str:
    unit = str(_object(value.get("unit")).get("code") or "")
    match value.get("type"):
        case "concept":
            return _shown(_list(value.get("selectedConcepts")))
        case "quantity-comparator":
            return f"{_COMPARATORS.get(str(value.get('comparator')), '')} {value.get('value')} {unit}".strip()
        case "quantity-range":
            return f"{value.get('minValue')} – {value.get('maxValue')} {unit}".strip()
    return ""


def _period(period: Mapping[str, Any], first: str, last: str) -> str:
    begin, end = str(period.get(first) or "")[:10], str(period.get(last) or "")[:10]
    return f"{begin or '…'} – {end or '…'}" if begin or end else ""


def _groups(document: Mapping[str, Any]) -> Iterator[QueryGroup]:
    for group in _objects(_object(document.get("dataExtraction")).get("attributeGroups")):
        refs = [str(one["attributeRef"]) for one in _objects(group.get("attributes")) if one.get("attributeRef")]
        yield QueryGroup(
            name=str(group.get("name") or group.get("id") or ""),
            type=type_of(refs[0]) if refs else "",
            attributes=", ".join(ref.partition(".")[2] or ref for ref in refs),
            filters="; ".join(filter(None, map(_filter, _objects(group.get("filter"))))),
        )


def _filter(one: Mapping[str, Any]) -> str:
    if one.get("type") == "date":
        return f"{one.get('name')} {_period(one, 'start', 'end')}".strip()
    return _shown(_list(one.get("codes")))
