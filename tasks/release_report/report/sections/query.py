"""Sections 3 and 5: the query, for what it is made, and whether consent was asked for. Its texts are free (R7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from config import Role
from tasks.release_report.publication import HIDDEN, NONE, count
from tasks.release_report.report.disclosure import Disclosure
from tasks.release_report.report.document import Table, Value
from tasks.release_report.report.facts import ReportFacts
from tasks.release_report.report.outline import TABLES, Parts, fact, table
from tasks.release_report.report.query import EffectiveQuery

CONSENT = "CONSENT"
"""What the extraction server calls the reason that a patient has not consented."""
_MOST_CODES = 8
_MOST_SIGNS = 300


def query(facts: ReportFacts, _: Disclosure) -> Parts:
    """Yield section 3, with what Art. 30 GDPR asks for as the configuration gives it."""
    asked = facts.query
    added = [one for group in (asked.groups if asked is not None else ()) for one in group.attributes if one.added]
    if asked is None:
        yield "no-query"
    else:
        if not added:
            yield "nothing-added"
        yield fact("title", _cut(asked.title) or "@no-title")
        yield fact("query_sha256", asked.sha256)
        yield fact("added_attributes", len(added))
        yield from (_cohort(asked), _groups(asked), _attributes(asked))
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
            sum(attribute.required for attribute in group.attributes),
            sum(not attribute.required for attribute in group.attributes),
            _codes(group.filters),
            "@added" if group.added else None,
        )
        for group in asked.groups
    ]
    return table("groups", rows)


def _attributes(asked: EffectiveQuery) -> Table:
    rows = [
        (
            _cut(group.name),
            attribute.ref,
            "@required" if attribute.required else "@optional",
            _cut(", ".join(attribute.links)),
            "@added" if attribute.added else None,
        )
        for group in asked.groups
        for attribute in group.attributes
    ]
    return table("attributes", rows, withheld=_are_cut("attributes", rows))


def _are_cut(name: str, rows: Sequence[object]) -> bool:
    """Return whether a table has fewer rows than there are; the query itself lies in the job directory."""
    return len(rows) > (TABLES[name].most or len(rows))


def consent(facts: ReportFacts, show: Disclosure) -> Parts:
    """Yield section 5: whether consent was asked for, and what the extraction server left out for want of it."""
    extraction = facts.step_with(Role.EXTRACT)
    checked = extraction is not None and facts.query is not None and facts.query.asks_for_consent
    if not checked:
        yield consent_not_checked(facts)
    if not show.enough:
        yield "too-few"
        return
    yield fact("consent_asked", facts.query.asks_for_consent if facts.query is not None else None)
    details = extraction.details if extraction is not None else {}
    by_stage = numbers_of(details.get("patient_exclusions"))
    if CONSENT in by_stage:
        without = show.cells(by_stage).shown.get(CONSENT, HIDDEN)
        yield fact("patients_without_permit", checked_or(without, checked=checked))
    if details.get("resource_exclusions"):
        number = show.technical(left_out_for_consent(details)) or NONE
        yield fact("resources_outside_permit", checked_or(number, checked=checked))
        if facts.outside_patients is not None:
            # Some of them may not leave: no part of those who do.
            outside = count(facts.outside_patients, show.k)
            yield fact("patients_outside_permit", checked_or(outside, checked=checked))
    if not facts.leaving.tables:
        found = facts.leaving.types.get("Consent")
        yield fact("patients_with_consent", show.count(found.patients if found is not None else 0))
    if isinstance(details.get("consent_files"), int):
        yield fact("consent_files", int(details["consent_files"]))


def consent_not_checked(facts: ReportFacts) -> str:
    """Return the sentence for a consent that nobody checked: no extraction by this job, or no criterion for it."""
    return "consent-not-checked" if facts.step_with(Role.EXTRACT) is not None else "consent-no-extraction"


def left_out_for_consent(details: Mapping[str, Any]) -> int:
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
