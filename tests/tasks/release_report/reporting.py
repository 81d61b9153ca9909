"""Release reports on files that a test writes, and helpers to read them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from config import PipelineConfig
from tasks.release_report import files
from tasks.release_report.document import ReleaseReport, ReportFinding, ReportSection, Table, Value
from tasks.release_report.facts import JobFacts
from tasks.release_report.report import Summary, make_report
from tasks.shared.file_work import Done, records_of
from tasks.shared.files.inventory import take_inventory
from tasks.shared.report import StepReport
from tasks.shared.stop import Stop

Json = dict[str, Any]

MADE = "2026-11-28T12:00:00+00:00"
TERMS = {"purpose": "a registry", "legal_basis": "consent", "recipient": "a university", "retention": "10 years"}
SEND = {"send_as": "direct_resource_load", "url": "https://store.example.org"}


def config(steps: Iterable[str] = ("local_import", "wait", "send"), **blocks: Any) -> PipelineConfig:
    """Return a configuration that sends to a public address; ``services`` and ``report`` are merged into it."""
    services = {"send": SEND} | blocks.pop("services", {})
    report = TERMS | blocks.pop("report", {})
    given = {"pipeline": {"enabled_steps": list(steps)}, "services": services, "report": report}
    return PipelineConfig.model_validate(given | blocks)


def step(name: str, position: int = 1, **more: Any) -> StepReport:
    """Return a completed step."""
    return StepReport(position=position, name=name, state="completed", **more)


def pseudonymizer(**more: Any) -> StepReport:
    """Return a completed pseudonymizer step."""
    return step("pseudonymizer", 2, output="pseudonymized", **more)


def record(job: Path, position: int, tallies: dict[str, dict[str, int]] | None = None, **counted: Any) -> None:
    """Leave the record of a file of a step, with what the step found and counted."""
    done = Done(file="x", identity="", tallies=tallies or {}, **counted)
    path = records_of(job, position) / "x.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(done))


def facts(job: Path, **more: Any) -> JobFacts:
    """Return a job that waits before it sends. ``found`` is what its pseudonymizer step found."""
    if (found := more.pop("found", None)) is not None:
        record(job, 2, found)
        more = {"steps": (step("local_import", output="import"), pseudonymizer(), step("validation", 3))} | more
    known: dict[str, Any] = {
        "job": "1234", "project": "study", "directory": job, "config": config(), "made": MADE, "step": 2,
        "steps": (step("local_import", output="import"), step("validation", 3)), "asks": True,
    }  # fmt: skip
    return JobFacts(**(known | more))


def write(job: Path, name: str, *lines: Json, folder: str = "import") -> Path:
    """Write an NDJSON file of a job."""
    path = job / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path


def summary(job: Path, folder: str = "import", **more: Any) -> Summary:
    """Make the report on a directory of a job."""
    manifest = take_inventory(job, [job / folder], stop=Stop())
    return make_report(facts(job, **more), manifest)


def report(job: Path, folder: str = "import", **more: Any) -> ReleaseReport:
    """Make the report on a directory of a job, and read it."""
    summary(job, folder, **more)
    found = files.read(job)
    assert found is not None
    return found


def everything(job: Path, made: Summary) -> str:
    """Return page, JSON, artifact and short lines of a report, one after the other."""
    texts = [files.page_of(job).read_text(), files.document_of(job).read_text(), made.markdown, made.title, *made.lines]
    return "\n".join(texts)


def bundle(*resources: Json, **more: Any) -> Json:
    """Return a collection of resources."""
    entries = [{"fullUrl": f"http://h/{one['resourceType']}/{one.get('id')}", "resource": one} for one in resources]
    return {"resourceType": "Bundle", "type": "collection", "entry": entries, **more}


def patient(own: str, **elements: Any) -> Json:
    """Return a Patient."""
    return {"resourceType": "Patient", "id": own, **elements}


def observation(whose: str | None, own: str = "o", **elements: Any) -> Json:
    """Return an Observation of a patient."""
    subject = {"subject": {"reference": f"Patient/{whose}"}} if whose is not None else {}
    return {"resourceType": "Observation", "id": own, "status": "final", **subject, **elements}


def of_level(found: ReleaseReport, level: str) -> list[ReportFinding]:
    """Return the findings of a level."""
    return [one for one in found.findings if one.level == level]


def codes(found: ReleaseReport) -> set[str]:
    """Return the codes of all findings."""
    return {one.code for one in found.findings}


def section(found: ReleaseReport, number: int) -> ReportSection:
    """Return the section with this number."""
    [one] = [one for one in found.sections if one.number == number]
    return one


def table(found: ReleaseReport, name: str) -> Table | None:
    """Return the table of this name, if it is there."""
    return next((one for part in found.sections for one in part.tables if one.name == name), None)


def rows(found: ReleaseReport, name: str) -> dict[Value, tuple[Value, ...]]:
    """Return the rows of a table by their first cell; empty without the table."""
    one = table(found, name)
    return {row[0]: row[1:] for row in one.rows} if one is not None else {}
