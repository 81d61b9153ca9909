"""Makers of release reports for the gate: scripted findings over the real files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tasks.release_report.measure.delivery import Measures
from tasks.release_report.report.build import Copies, digest_of
from tasks.release_report.report.document import ReleaseReport, ReportFinding, ReportSection, Tiles
from tasks.release_report.report.facts import ReportFacts
from tasks.shared.stop import Stop
from tests.peers.release_report import MAIDEN, SECTIONS, about

STOP = ReportFinding(level="stop", code="original", about=MAIDEN, section=7, patients=about(67))
LOOK = ReportFinding(level="look", code="free-text", about="Procedure.note.text", section=7)


@dataclass
class Maker:
    """Makes reports of what was measured with these findings, or fails; keeps what it was given."""

    findings: Sequence[ReportFinding] = ()
    fails: Exception | None = None
    given: list[ReportFacts] = field(default_factory=list)

    def __call__(self, facts: ReportFacts, measures: Measures, job: Path, stop: Stop) -> Copies:
        imported, leaving = measures
        self.given.append(replace(facts, imported=imported, leaving=leaving, files=digest_of(leaving.files)))
        if self.fails is not None:
            raise self.fails
        return made(self.given[-1], self.findings)


def made(facts: ReportFacts, findings: Sequence[ReportFinding] = ()) -> Copies:
    files = facts.leaving.files
    stops = sum(one.level == "stop" for one in findings)
    where = facts.destination.shown if facts.destination else ""
    tiles: dict[str, Any] = {"patients": 6, "resources": 19, "encrypted": False, "looks": 0, "notes": 0}
    report = ReleaseReport(
        job=facts.job, project=facts.project, step=facts.step, made=facts.made,
        language="de" if facts.settings.language == "de" else "en",
        sent=None if not facts.sent else "decided" if facts.decides else "undecided",
        k=facts.settings.k, findings=tuple(findings), decisions=tuple(facts.decisions),
        sections=tuple(ReportSection(number=number, name=name) for number, name in enumerate(SECTIONS, start=2)),
        tiles=Tiles(files=len(files), bytes=sum(one.bytes for one in files), destination=where, stops=stops, **tiles),
        files=facts.files,
    )  # fmt: skip
    return Copies(report, report.model_copy(update={"recipient": True, "k": 11}))
