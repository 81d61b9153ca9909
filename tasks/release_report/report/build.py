"""The document out of the facts: sections 0 to 10."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final, Literal

from tasks.release_report.measure.delivery import Measures, digest_of
from tasks.release_report.report.disclosure import Disclosure
from tasks.release_report.report.document import Level, ReleaseReport, Tiles
from tasks.release_report.report.facts import ReportFacts
from tasks.release_report.report.findings import findings
from tasks.release_report.report.outline import SectionRule, section
from tasks.release_report.report.risk import patients_apart
from tasks.release_report.report.sections import identifying, leaving, query, review

_UNCHECKED: Final = 9
_SECTIONS: Final = (
    SectionRule(2, "leaving", leaving.delivered_files),
    SectionRule(3, "query", query.query),
    SectionRule(4, "flow", leaving.patients),
    SectionRule(5, "consent", query.consent),
    SectionRule(6, "types", leaving.types),
    SectionRule(7, "identifying", identifying.identifying),
    SectionRule(8, "apart", patients_apart, of_tables="not-of-tables"),
    SectionRule(_UNCHECKED, "unchecked", review.unchecked),
    SectionRule(10, "decision", review.decision),
)


def make(facts: ReportFacts, measures: Measures) -> ReleaseReport:
    """Return the report on what was measured."""
    imported, leaving = measures
    return build(replace(facts, leaving=leaving, imported=imported, files=digest_of(leaving.files)))


def build(facts: ReportFacts) -> ReleaseReport:
    """Return the report. The same facts give the same one."""
    show = Disclosure(
        k=facts.settings.k,
        measured=facts.leaving,
        imported=facts.imported,
        asked=facts.query.codes if facts.query is not None else frozenset(),
        ours=not facts.corrected,
    )
    found = findings(facts, show)
    sections = {rule.number: rule.section(facts, show) for rule in _SECTIONS}
    if facts.query_not_applied:
        sections[3] = sections[3].model_copy(update={"name": "query-not-applied"})
    nothing = () if found else ("nothing-found",)
    sections[1] = section(1, "first", (*nothing, *sections[_UNCHECKED].said))
    return ReleaseReport(
        job=facts.job,
        project=facts.project,
        step=facts.step,
        made=facts.made,
        language="de" if facts.settings.language == "de" else "en",
        sent=_sent(facts),
        k=show.k,
        tiles=_tiles(facts, Counter(one.level for one in found)),
        findings=found,
        sections=tuple(sections[number] for number in sorted(sections)),
        decisions=tuple(facts.decisions),
        files=facts.files,
        seconds=facts.leaving.seconds + (facts.imported.seconds if facts.imported is not None else 0.0),
    )


def at_end(report: ReleaseReport, facts: ReportFacts) -> ReleaseReport:
    """Return a report on the same files as that of the job's end, with the decisions and whether the data were sent."""
    return report.model_copy(
        update={"step": None, "made": facts.made, "sent": _sent(facts), "decisions": tuple(facts.decisions)}
    )


def _sent(facts: ReportFacts) -> Literal["decided", "undecided"] | None:
    if not facts.sent:
        return None
    return "decided" if facts.decides else "undecided"


def _tiles(facts: ReportFacts, levels: Counter[Level]) -> Tiles:
    """Return the tiles of the first screen."""
    files, to = facts.leaving.files, facts.destination
    return Tiles(
        patients=facts.leaving.patients,
        files=len(files),
        bytes=sum(file.bytes for file in files),
        resources=sum(file.resources for file in files),
        destination=to.shown if to is not None else "@no-destination",
        recipient=facts.settings.recipient or "",
        encrypted=to.encrypted if to is not None else None,
        stops=levels["stop"],
        looks=levels["look"],
        notes=levels["note"],
    )
