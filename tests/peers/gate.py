"""Makers of release reports for the gate: what they find is said beforehand, what they cover is what is there."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.release_report.measure.measured import MeasuredFile
from tasks.release_report.report.document import Finding, ReleaseReport, Section, Tiles
from tasks.release_report.report.make import Asked, Made
from tasks.shared.files.inventory import Entry, Inventory
from tests.peers.release_report import MAIDEN, SECTIONS, about

STOP = Finding(level="stop", code="original", about=MAIDEN, section=7, patients=about(67))


@dataclass
class Maker:
    """Makes reports with these findings, or fails; keeps what it was asked."""

    findings: Sequence[Finding] = ()
    fails: Exception | None = None
    asked: list[Asked] = field(default_factory=list)

    def __call__(self, asked: Asked) -> Made:
        self.asked.append(asked)
        if self.fails is not None:
            raise self.fails
        return made(asked, self.findings)


def made(asked: Asked, findings: Sequence[Finding] = ()) -> Made:
    measured = tuple(_measured(asked.base, path) for path in asked.leaving)
    stops = sum(one.level == "stop" for one in findings)
    where = asked.destination.shown if asked.destination else ""
    tiles: dict[str, Any] = {"patients": 6, "resources": 19, "encrypted": False, "looks": 0, "notes": 0}
    house = ReleaseReport(
        job=asked.job, project=asked.project, step=asked.step, made=asked.made, language=asked.settings.language,
        sent=None if not asked.sent else "decided" if asked.decides else "undecided",
        k=asked.settings.k, findings=tuple(findings), decisions=tuple(asked.decisions),
        sections=tuple(Section(number=number, name=name) for number, name in enumerate(SECTIONS, start=2)),
        tiles=Tiles(
            files=len(measured), bytes=sum(one.bytes for one in measured), destination=where, stops=stops, **tiles
        ),
        files=Inventory(
            tuple(Entry(one.name, one.bytes, one.sha256) for one in sorted(measured, key=lambda one: one.name))
        ).digest,
    )  # fmt: skip
    return Made(house, house.model_copy(update={"recipient": True, "k": 11}), measured)


def _measured(base: Path, path: Path) -> MeasuredFile:
    content = path.read_bytes()
    name, size = path.relative_to(base).as_posix(), len(content)
    return MeasuredFile(name, size, size, 0, 0, 0, hashlib.sha256(content).hexdigest())


HANGING = """
import sys, time
from pathlib import Path
import tasks.release_report.report.make as maker
def hang(asked):
    Path(sys.argv[1]).touch()
    time.sleep(600)
maker.make = hang
from flows.run import main
main(sys.argv[2:])
"""
"""A command in whose process a release report is never done: it touches the file of its first argument, and hangs."""

SLOW = """
import sys, time
from tasks.release_report.measure.measure import _Reader
line = _Reader._line
def slow(*arguments):
    time.sleep(0.1)
    line(*arguments)
_Reader._line = slow
from flows.run import main
sys.exit(main(sys.argv[1:]))
"""
"""A command in whose process each line that a release report measures takes a tenth of a second."""
