"""Sections 4 and 6: the patients from the query to the delivery, and resources by type over the steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from config import Role
from tasks.release_report.report.disclosure import Disclosure
from tasks.release_report.report.document import Section, Value
from tasks.release_report.report.facts import Facts
from tasks.release_report.report.findings import TECHNICAL
from tasks.release_report.report.outline import Parts, fact, table
from tasks.release_report.report.sections.query import CONSENT, checked_or, numbers_of
from tasks.shared.publication import HIDDEN, flow
from tasks.shared.publication_by_type import by_type


def patients(facts: Facts, show: Disclosure) -> Parts:
    """Yield section 4. Figures around the number of patients are said as R6 allows it."""
    if not show.enough:
        yield "too-few"
        yield fact("patients", show.everybody())
        return
    extraction = facts.step_with(Role.EXTRACT)
    details: dict[str, Any] = extraction.details if extraction is not None else {}
    said = flow(show.all, reversed(facts.around), show.k, rounded=show.recipient)
    rows: list[list[Value]] = [[name, said[name] or HIDDEN, None] for name, _ in facts.around]
    rows.append(["@leaving", show.everybody(), _reason(facts)])
    yield table("flow", rows, withheld=None in said.values())
    consent = facts.query is not None and facts.query.asks_for_consent
    stages = numbers_of(details.get("patient_exclusions"))
    if stages:
        cells = show.cells(stages)
        lost: list[list[Value]] = [
            [f"@stage-{name.lower()}", checked_or(number, checked=consent or name != CONSENT)]
            for name, number in cells.shown.items()
        ]
        if cells.other is not None:
            lost.append(["@other-stages", cells.other])
        yield table("excluded", lost, withheld=cells.other is not None)


def _reason(facts: Facts) -> str | None:
    if facts.corrected:
        return "@corrected"
    if facts.imported is None:
        return "@not-compared"
    if facts.imported.patients == facts.leaving.patients:
        return "@as-imported"
    return "@rules-remove" if facts.rules is not None and facts.rules.removes else "@unexplained"


def types(facts: Facts, show: Disclosure) -> Parts:
    """Yield section 6. Where a type has few patients at any step it is among the other types at each (R1)."""
    known = facts.imported is not None and not facts.leaving.tables  # tables are no types
    before = facts.imported.types if facts.imported is not None and known else {}
    columns = [
        {name: (of.resources - of.nobody, of.patients, of.nobody) for name, of in step.items()}
        for step in (facts.leaving.types, before)
    ]
    totals = [show.all, show.all_before]
    (after_, before_), others = by_type(columns, show.k, of=totals, recipient=show.recipient)
    rows: list[list[Value]] = []
    for name in sorted(after_):
        then_, now_ = before_[name], after_[name]
        rows.append(
            [
                show.type(name),
                then_.resources if known else None,
                then_.patients if known else None,
                now_.resources,
                now_.patients,
                _mark(facts, name),
            ]
        )
    if others is not None:
        after, was = others
        rows.append(
            ["@other-types", was.resources if known else None, was.patients if known else None,
             after.resources, after.patients, None]
        )  # fmt: skip
    nobody: list[list[Value]] = [
        [show.type(name), of.nobody, _mark(facts, name)] for name, of in sorted(after_.items()) if of.nobody
    ]
    if nobody:
        yield "nobody-said"
    yield table("types", rows, withheld=others is not None)
    yield table("nobody", nobody)


def resources(sections: Iterable[Section]) -> int | None:
    """Return the resources of section 6 added up as they are printed; ``None`` where they are not."""
    tables = [one for section in sections for one in section.tables if one.name == "types"]
    columns = [(one, one.columns.index("resources")) for one in tables]
    return sum(n for one, at in columns for row in one.rows if isinstance(n := row[at], int)) if columns else None


def _mark(facts: Facts, name: str) -> str | None:
    if name in TECHNICAL:
        return "@technical"
    if facts.query is None or facts.leaving.tables:
        return None
    return "@asked" if name in facts.query.types else "@not-asked"
