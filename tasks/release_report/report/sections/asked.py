"""Sections 3 and 5: the query, for what it is made, and whether consent was asked for. Its texts are free (R7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from config import Role
from tasks.release_report.report.document import Fact, Section, Table, Value
from tasks.release_report.report.facts import Facts
from tasks.release_report.report.query import Query
from tasks.release_report.report.teller import Teller, fact, table
from tasks.shared.publication import HIDDEN, NONE, count

MOST_ROWS = 150
"""Criteria, and attributes, that are shown; the query itself lies in the job directory."""
CONSENT = "CONSENT"
"""What the extraction server calls the reason that a patient has not consented."""
_MOST_CODES = 8
_MOST_SIGNS = 300


def query(facts: Facts, _: Teller) -> Section:
    """Section 3, with what Art. 30 GDPR asks for as the configuration gives it."""
    asked, settings = facts.query, facts.settings
    record = [
        fact("purpose", settings.purpose or "@not-given"),
        fact("legal_basis", settings.legal_basis or "@not-given"),
        fact("retention", settings.retention or "@not-given"),
        fact("contact", settings.contact or "@not-given"),
        fact("recipient", settings.recipient or "@not-given"),
    ]
    if asked is None:
        return Section(number=3, name="query", said=("no-query",), facts=tuple(record))
    added = [attribute for group in asked.groups for attribute in group.attributes if attribute.added]
    return Section(
        number=3,
        name="query",
        said=() if added else ("nothing-added",),
        facts=(
            fact("title", _cut(asked.title) or "@no-title"),
            fact("query_sha256", asked.sha256),
            fact("added_attributes", len(added)),
            *record,
        ),
        tables=(_cohort(asked), _groups(asked), _attributes(asked)),
    )


def _cohort(asked: Query) -> Table:
    rows = [
        (
            "@excluded" if one.excluded else "@included",
            one.row,
            _cut(one.context),
            _cut(one.term),
            _cut(one.restriction),
            _codes(one.codes),
        )
        for one in asked.criteria[:MOST_ROWS]
    ]
    columns = ("criterion", "row", "context", "term", "restriction", "codes")
    return table("cohort", columns, rows, withheld=len(asked.criteria) > MOST_ROWS)


def _groups(asked: Query) -> Table:
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
        for group in asked.groups[:MOST_ROWS]
    ]
    columns = ("group", "type", "profile", "required_attributes", "optional_attributes", "filter", "enrichment")
    return table("groups", columns, rows)


def _attributes(asked: Query) -> Table:
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
    columns = ("group", "attribute", "required", "links", "enrichment")
    return table("attributes", columns, rows[:MOST_ROWS], withheld=len(rows) > MOST_ROWS, folded=True)


def consent(facts: Facts, tell: Teller) -> Section:
    """Section 5: whether consent was asked for, and what the extraction server says it left out for want of it."""
    asked = facts.query
    said = []
    if asked is None or not asked.asks_for_consent:
        said.append("consent-not-checked")
    if not tell.enough:
        return Section(number=5, name="consent", said=(*said, "too-few"))
    given: list[Fact] = [fact("consent_asked", asked.asks_for_consent if asked is not None else None)]
    extraction = facts.step_with(Role.EXTRACT)
    details = extraction.details if extraction is not None else {}
    by_stage = numbers_of(details.get("patient_exclusions"))
    checked = asked is not None and asked.asks_for_consent
    if CONSENT in by_stage:
        without = tell.cells(by_stage).shown.get(CONSENT, HIDDEN)
        given.append(fact("patients_without_permit", checked_or(without, checked=checked)))
    if details.get("resource_exclusions"):
        number = tell.technical(left_out_for_consent(details)) or NONE
        given.append(fact("resources_outside_permit", checked_or(number, checked=checked)))
        if facts.outside_patients is not None:
            # Some of them may not leave: no part of those who do.
            outside = count(facts.outside_patients, tell.k)
            given.append(fact("patients_outside_permit", checked_or(outside, checked=checked)))
    if not facts.leaving.tables:
        found = facts.leaving.types.get("Consent")
        given.append(fact("patients_with_consent", tell.count(found.patients if found is not None else 0)))
    if isinstance(details.get("consent_files"), int):
        given.append(fact("consent_files", int(details["consent_files"])))
    return Section(number=5, name="consent", said=tuple(said), facts=tuple(given))


def left_out_for_consent(details: Mapping[str, Any]) -> int:
    """The resources that an extraction left out for want of consent, as its result counts them."""
    return sum(numbers_of(reasons).get("Consent", 0) for reasons in _objects(details.get("resource_exclusions")))


def checked_or(number: Value, *, checked: bool) -> Value:
    """What was left out for want of consent; that it was nothing says nothing where nobody looked."""
    return number if checked or number != NONE else "@not-checked"


def numbers_of(value: Any) -> dict[str, int]:
    """The numbers by name that a step's details have."""
    found = value.items() if isinstance(value, Mapping) else ()
    return {str(name): n for name, n in found if isinstance(n, int) and not isinstance(n, bool)}


def _objects(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, Mapping) else []


def _codes(codes: Sequence[str]) -> str:
    more = len(codes) - _MOST_CODES
    return ", ".join(codes[:_MOST_CODES]) + (f" … (+{more:,})" if more > 0 else "")


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SIGNS else text[:_MOST_SIGNS] + "…"
