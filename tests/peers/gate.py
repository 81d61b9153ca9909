"""A maker of release reports for the gate: scripted findings over the real files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tasks.release_report.measure.delivery import Measures
from tasks.release_report.report.build import build, digest_of
from tasks.release_report.report.document import ReleaseReport, ReportFinding
from tasks.release_report.report.facts import ReportFacts
from tests.peers.release_report import MAIDEN, about

STOP = ReportFinding(level="stop", code="original-left", about=MAIDEN, section=7, patients=about(67))


@dataclass
class Maker:
    """Makes reports of what was measured with these findings, or fails; keeps what it was given."""

    findings: Sequence[ReportFinding] = ()
    fails: Exception | None = None
    given: list[ReportFacts] = field(default_factory=list)

    def __call__(self, facts: ReportFacts, measures: Measures) -> ReleaseReport:
        imported, leaving = measures
        self.given.append(replace(facts, imported=imported, leaving=leaving, files=digest_of(leaving.files)))
        if self.fails is not None:
            raise self.fails
        report, levels = build(self.given[-1]), Counter(one.level for one in self.findings)
        tiles = report.tiles.model_copy(update={"stops": levels["stop"], "looks": levels["look"], "notes": 0})
        return report.model_copy(update={"findings": tuple(self.findings), "tiles": tiles})
