"""The document out of the facts: sections 0 to 18, each number and text by the rules of publication."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from config.report import Language
from tasks.release_report.measure.delivery import Measures, digest_of
from tasks.release_report.report.disclosure import Disclosure
from tasks.release_report.report.document import Level, ReleaseReport, ReportSection, Tiles, decisions_for
from tasks.release_report.report.facts import ReportFacts
from tasks.release_report.report.findings import findings
from tasks.release_report.report.kept import kept_from
from tasks.release_report.report.outline import SectionRule, section
from tasks.release_report.report.risk import patients_apart
from tasks.release_report.report.sections import content, identifying, leaving, query, review
from tasks.release_report.report.step_files import patients_outside, read_validated
from tasks.shared.publication import Count, recipients_k
from tasks.shared.stop import Stop

_UNCHECKED: Final = 14
_SECTIONS: Final = (
    SectionRule(3, "query", query.query),
    SectionRule(4, "flow", leaving.patients),
    SectionRule(5, "consent", query.consent),
    SectionRule(6, "types", leaving.types, from_k=True),
    SectionRule(7, "identifying", identifying.identifying),
    SectionRule(8, "apart", patients_apart, from_k=True, of_tables="not-of-tables"),
    SectionRule(9, "completeness", content.completeness, from_k=True, of_tables="not-of-tables"),
    SectionRule(10, "content", content.content, from_k=True),
    SectionRule(11, "time", content.time, from_k=True),
    SectionRule(12, "references", content.references),
    SectionRule(13, "validation", review.validation),
    SectionRule(_UNCHECKED, "unchecked", review.unchecked),
    SectionRule(15, "warnings", review.warnings),
    SectionRule(17, "decision", review.decision),
)
"""Sections that the facts alone make; the others are about them."""


@dataclass(frozen=True)
class Copies:
    """The two copies of a report."""

    in_house: ReleaseReport
    recipient: ReleaseReport


def make(facts: ReportFacts, measures: Measures, job: Path, stop: Stop) -> Copies:
    """Return both copies of the report on what was measured, with what the steps left in the directory of the ``job``.

    Raises:
        Stopped: somebody asked.
    """
    imported, leaving = measures
    facts = replace(
        facts,
        leaving=leaving,
        imported=imported,
        validated=tuple(read_validated(job, facts.steps, leaving, imported)),
        outside_patients=patients_outside(job, facts.steps, stop),
        files=digest_of(leaving.files),
    )
    k = facts.settings.k
    like = replace(facts, last=facts.last_copy)
    return Copies(build(facts, k=k), build(like, k=k, recipient=True))


def build(facts: ReportFacts, *, k: int, recipient: bool = False) -> ReleaseReport:
    """Return the in-house copy, or with ``recipient`` the one that may go with the data (R2: k of 11 at least).

    With fewer than ``k`` patients it says only what leaves, where to, the query and the alarms (R6). The same facts
    give the same report.
    """
    k = recipients_k(k) if recipient else k
    show = Disclosure(
        k=k,
        recipient=recipient,
        measured=facts.leaving,
        imported=facts.imported,
        asked=facts.query.codes if facts.query is not None else frozenset(),
        ours=not facts.corrected,
    )
    patients, found = show.everybody(), findings(facts, show)
    sections = {rule.number: rule.section(facts, show) for rule in _SECTIONS}
    if facts.query_not_applied:
        sections[3] = sections[3].model_copy(update={"name": "query-not-applied"})
    kept = kept_from(facts.last, patients, k) if review.is_alike(facts) else None
    if kept is not None:
        patients, found = kept.patients or patients, kept.findings(found)
        sections = {number: kept.section(one) for number, one in sections.items()}
    nothing = () if found else ("nothing-found",)
    sections[1] = section(1, "first", (*nothing, *sections[_UNCHECKED].said))
    sections[2] = section(2, "leaving", leaving.delivered_files(facts, show, leaving.resources(sections.values())))
    if not recipient:
        sections[16] = section(16, "compared", review.compared(facts, show, found))
    sections[18] = section(18, "rules", review.rules(facts, show, sections.values()))
    return ReleaseReport(
        job=facts.job,
        project=facts.project,
        step=facts.step,
        made=facts.made,
        language="de" if facts.settings.language is Language.DE else "en",
        recipient=recipient,
        sent=None if not facts.sent else "decided" if facts.decides else "undecided",
        k=k,
        tiles=_tiles(facts, show, patients, sections[2], Counter(one.level for one in found)),
        findings=found,
        sections=tuple(sections[number] for number in sorted(sections)),
        decisions=decisions_for(facts.decisions, recipient=recipient),
        files=facts.files,
        seconds=facts.leaving.seconds + (facts.imported.seconds if facts.imported is not None else 0.0),
    )


def _tiles(
    facts: ReportFacts, show: Disclosure, patients: Count | int, leaves: ReportSection, levels: Counter[Level]
) -> Tiles:
    """Return section 0, with the figures of section 2."""
    files, to = facts.leaving.files, facts.destination
    resources = next(one.value for one in leaves.facts if one.name == "resources")
    return Tiles(
        patients=patients,
        files=show.files(len(files)),
        bytes=show.bytes(sum(file.bytes for file in files)),
        resources=resources if isinstance(resources, int) else 0,
        destination=to.shown if to is not None else "@no-destination",
        recipient=facts.settings.recipient or "",
        encrypted=to.encrypted if to is not None else None,
        stops=levels["stop"],
        looks=levels["look"],
        notes=levels["note"],
    )
