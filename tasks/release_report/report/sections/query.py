"""Sections 3 and 5: the query, for what it is made, and whether consent was asked for. Its texts are free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.release_report.report.disclosure import Disclosure
from tasks.release_report.report.document import Table, Value
from tasks.release_report.report.facts import ReportFacts
from tasks.release_report.report.numbers import NONE, banded
from tasks.release_report.report.outline import TABLES, Parts, fact, table
from tasks.release_report.report.query import EffectiveQuery

CONSENT = "CONSENT"
"""What the extraction server calls the reason that a patient has not consented."""
_MOST_CODES = 8
_MOST_SIGNS = 300


def query(facts: ReportFacts, _: Disclosure) -> Parts:
    """Yield section 3, with what Art. 30 GDPR asks for as the configuration gives it."""
    asked = facts.query
    if asked is None:
        yield "no-query"
    else:
        yield fact("title", _cut(asked.title) or "@no-title")
        yield fact("query_sha256", asked.sha256)
        yield from (_cohort(asked), _groups(asked))
    for name in ("purpose", "legal_basis", "recipient", "retention", "contact"):
        yield fact(name, getattr(facts.settings, name) or "@not-given")
    yield fact("consent", facts.consent)


def _cohort(asked: EffectiveQuery) -> Table:
    rows = [
        (
            "@excluded" if one.excluded else "@included",
            one.row,
            _cut(one.context),
            _cut(one.term),
            _cut(one.restriction),
            _codes(one.codes),
        )
        for one in asked.criteria
    ]
    return table("cohort", rows, withheld=_are_cut("cohort", rows))


def _groups(asked: EffectiveQuery) -> Table:
    rows = [
        (
            _cut(group.name),
            group.type,
            group.profile,
            group.required,
            group.optional,
            _codes(group.filters),
        )
        for group in asked.groups
    ]
    return table("groups", rows)


def _are_cut(name: str, rows: Sequence[object]) -> bool:
    """Return whether a table has fewer rows than there are; the query itself lies in the job directory."""
    return len(rows) > (TABLES[name].most or len(rows))


def consent(facts: ReportFacts, show: Disclosure) -> Parts:
    """Yield section 5: whether consent was asked for, and what the extraction server left out for want of it."""
    extraction = facts.step_with("extractor")
    checked = extraction is not None and facts.query is not None and facts.query.asks_for_consent
    if not checked:
        yield consent_not_checked(facts)
    yield fact("consent_asked", facts.query.asks_for_consent if facts.query is not None else None)
    details = extraction.details if extraction is not None else {}
    by_stage = numbers_of(details.get("patient_exclusions"))
    if CONSENT in by_stage:
        yield fact("patients_without_permit", checked_or(banded(by_stage[CONSENT], show.k), checked=checked))
    if details.get("resource_exclusions"):
        number = _left_out_for_consent(details) or NONE
        yield fact("resources_outside_permit", checked_or(number, checked=checked))


def consent_not_checked(facts: ReportFacts) -> str:
    """Return the sentence for a consent that nobody checked: no extraction by this job, or no criterion for it."""
    return "consent-not-checked" if facts.step_with("extractor") is not None else "consent-no-extraction"


def _left_out_for_consent(details: Mapping[str, Any]) -> int:
    """Return the number of resources left out for want of consent, from the result of an extraction."""
    return sum(numbers_of(reasons).get("Consent", 0) for reasons in _objects(details.get("resource_exclusions")))


def checked_or(number: Value, *, checked: bool) -> Value:
    """Return the number left out for want of consent, or "not checked" for zero if nobody checked."""
    return number if checked or number != NONE else "@not-checked"


def numbers_of(value: Any) -> dict[str, int]:
    """Return the numbers by name in the details of a step."""
    found = value.items() if isinstance(value, Mapping) else ()
    return {str(name): n for name, n in found if isinstance(n, int) and not isinstance(n, bool)}


def _objects(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, Mapping) else []


def _codes(codes: Sequence[str]) -> str:
    more = len(codes) - _MOST_CODES
    return ", ".join(codes[:_MOST_CODES]) + (f" … (+{more:,})" if more > 0 else "")


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SIGNS else text[:_MOST_SIGNS] + "…"
