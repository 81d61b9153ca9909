"""A report of files on disk, measured and made, and helpers to read any report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from tasks.release_report.measure.delivery import Delivery, Measures, measure_delivery
from tasks.release_report.report.build import make
from tasks.release_report.report.document import ReleaseReport, ReportSection, Table, Value
from tasks.release_report.report.facts import Destination, ReportFacts
from tasks.shared.stop import Stop


def write_lines(path: Path, lines: Iterable[Any]) -> Path:
    """Write an NDJSON file, with its directory."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def bundle(*resources: Any) -> dict[str, Any]:
    """Return a Bundle of these resources."""
    entries = [{"resource": resource} for resource in resources]
    return {"resourceType": "Bundle", "type": "collection", "entry": entries}


def measures_of(job: Path, leaving: Sequence[Path], imported: Sequence[Path], *, k: int = 5) -> Measures:
    """Measure these files below the directory of a job."""
    today = date(2026, 11, 23)
    return measure_delivery(Delivery(base=job, leaving=leaving, imported=imported, k=k, today=today, stop=Stop()))


def report_of(job: Path, leaving: Sequence[Path], imported: Sequence[Path], **more: Any) -> ReleaseReport:
    """Return the report on these files below the directory of a job; ``more`` are other facts."""
    destination = Destination("s3_upload", "store.example", bucket="b", encrypted=True)
    known: dict[str, Any] = {"job": "j", "project": "p", "destination": destination, "made": "2026-01-01T00:00:00Z"}
    facts = ReportFacts(**(known | more))
    return make(facts, measures_of(job, leaving, imported, k=facts.settings.k))


def section_of(report: ReleaseReport, number: int) -> ReportSection:
    """Return the section with this number."""
    [section] = [one for one in report.sections if one.number == number]
    return section


def table_of(report: ReleaseReport, name: str) -> Table:
    """Return the only table of this name."""
    [table] = [one for section in report.sections for one in section.tables if one.name == name]
    return table


def facts_in(report: ReleaseReport, number: int) -> dict[str, Value]:
    """Return the facts of the section with this number."""
    return {one.name: one.value for one in section_of(report, number).facts}
