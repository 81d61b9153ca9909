"""Sections 2, 4 and 6: what ``send`` will read, the patients from the query to the delivery, and resources by type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.release_report.measure.measured import TypeCount
from tasks.release_report.report.disclosure import Disclosure
from tasks.release_report.report.document import Fact, Value
from tasks.release_report.report.facts import ReportFacts
from tasks.release_report.report.findings import TECHNICAL
from tasks.release_report.report.numbers import banded
from tasks.release_report.report.outline import TABLES, Parts, fact, table
from tasks.release_report.report.sections.query import CONSENT, checked_or, numbers_of


def delivered_files(facts: ReportFacts, _: Disclosure) -> Parts:
    """Yield section 2."""
    files = sorted(facts.leaving.files, key=lambda file: (-file.bytes, file.name))
    if facts.leaving.tables:
        yield "tables-leave"
    yield from _destination(facts)
    yield fact("files", len(files))
    yield fact("stored_bytes", sum(file.bytes for file in files))
    yield fact("content_bytes", sum(file.content for file in files))
    yield fact("lines", sum(file.lines for file in files))
    yield fact("resources", sum(file.resources for file in files))
    yield fact("digest", facts.files)
    rows = [(file.name, file.bytes, file.content, file.lines, file.resources, file.sha256) for file in files]
    yield table("files", rows, withheld=len(rows) > (TABLES["files"].most or 0), folded=len(files) > 10)


def _destination(facts: ReportFacts) -> list[Fact]:
    to = facts.destination
    if to is None:
        return [fact("destination", "@no-destination")]
    given = [fact(name, getattr(to, name)) for name in ("mode", "host", "path", "bucket", "project", "organization")]
    way = [fact(name, getattr(to, name)) for name in ("encrypted", "private")]
    return [*(one for one in given if one.value), fact("authentication", f"@auth-{to.authentication}"), *way]


def patients(facts: ReportFacts, show: Disclosure) -> Parts:
    """Yield section 4."""
    rows: list[list[Value]] = [[name, banded(number, show.k), None] for name, number in facts.around]
    rows.append(["@leaving", facts.leaving.patients, _reason(facts)])
    yield table("flow", rows)
    extraction = facts.step_with("extractor")
    details: dict[str, Any] = extraction.details if extraction is not None else {}
    consent = facts.query is not None and facts.query.asks_for_consent
    yield table(
        "excluded",
        (
            [f"@stage-{name.lower()}", checked_or(banded(number, show.k), checked=consent or name != CONSENT)]
            for name, number in numbers_of(details.get("patient_exclusions")).items()
        ),
    )


def _reason(facts: ReportFacts) -> str | None:
    if facts.corrected:
        return "@corrected"
    if facts.imported is None:
        return "@not-compared"
    if facts.imported.patients == facts.leaving.patients:
        return "@as-imported"
    return "@rules-remove" if facts.rules is not None and facts.rules.removes else "@unexplained"


def types(facts: ReportFacts, show: Disclosure) -> Parts:
    """Yield section 6."""
    before: Mapping[str, TypeCount] = {}
    if facts.imported is not None and not facts.leaving.tables:  # tables are no types
        before = facts.imported.types
    now = facts.leaving.types
    none = TypeCount(0, 0)
    rows: list[list[Value]] = []
    for name in sorted({*now, *before}):
        was, of = before.get(name, none), now.get(name, none)
        then: list[Value] = [was.resources, show.before(was.patients)] if before else [None, None]
        rows.append([show.type(name), *then, of.resources, show.count(of.patients), _mark(facts, name)])
    yield table("types", rows)


def _mark(facts: ReportFacts, name: str) -> str | None:
    if name in TECHNICAL:
        return "@technical"
    if facts.query is None or facts.leaving.tables:
        return None
    return "@asked" if name in facts.query.types else "@not-asked"
