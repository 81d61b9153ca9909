"""The validation gate in whole runs."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Commands
from tests.peers.project import Fhir
from tests.peers.server import Reply, ScriptedServer, SeenRequest
from tests.peers.services import JSON, issue, outcome

CANARY = "Kanarienvogel"


def judged(seen: SeenRequest) -> Reply:
    """Return an error for every resource with the canary's family name, which the answer quotes as real ones do."""
    entries = json.loads(seen.body or b'{"entry": []}')["entry"]
    found = [
        issue(diagnostics=f"{CANARY} is not allowed", expression=[f"Bundle.entry[{number}].resource.name[0]"])
        for number, entry in enumerate(entries)
        if CANARY in json.dumps(entry) or "sluiceProbe" in json.dumps(entry)
    ]
    fine = issue("information", "informational", diagnostics="All OK")
    return Reply(200, outcome(*(found or [fine])), JSON)


@pytest.fixture
def service() -> Iterator[ScriptedServer]:
    with ScriptedServer(judged) as service:
        yield service


@pytest.fixture
def checked(tmp_path: Path, fhir: Fhir, service: ScriptedServer) -> Path:
    """local_import → validation → send, over three patients of whom one is wrong."""
    (tmp_path / "data").mkdir()
    names = ["Gut", CANARY, "Besser"]
    lines = [json.dumps({"resourceType": "Patient", "id": f"p{n}", "name": [{"family": name}]})
             for n, name in enumerate(names)]  # fmt: skip
    (tmp_path / "data" / "Patient.ndjson").write_text("\n".join(lines) + "\n")
    (tmp_path / "config.yaml").write_text(
        f"""
services:
  local_import: {{dir: data}}
  validation: {{url: "{service.url}"}}
  send: {{send_as: direct_resource_load, url: "{fhir.url}"}}
pipeline: {{enabled_steps: [local_import, validation, send]}}
retry: {{max_attempts: 2, initial_backoff_ms: 10, max_backoff_ms: 20}}
jobs_dir: jobs
"""
    )
    return tmp_path


def posts(service: ScriptedServer) -> int:
    return sum(b"sluiceProbe" not in seen.body for seen in service.seen if seen.method == "POST")


def test_findings_complete_the_step_and_fail_the_job_with_exit_code_5(
    sluice: Commands, checked: Path, fhir: Fhir
) -> None:
    ran = sluice("pipeline", "start", "config.yaml")
    assert ran.code == 5, ran.err
    assert "error[validation-findings]: validation found 1 error in 1 resource" in ran.err
    assert "fail_on_error: false" in ran.err
    status = sluice.status(ran.job)
    assert status["state"] == "failed"
    assert [step["state"] for step in status["steps"]] == ["completed", "completed", "pending"]
    assert status["error"]["reference"] == "validation-findings"
    assert not status["error"]["transient"]
    assert status["findings"] == {"errors": 1, "warnings": 0, "gate": "closed"}
    assert "1 finding" in ran.out
    assert fhir.total() == 0
    summary = checked / "jobs" / ran.job / "validation" / "summary.csv"
    (row,) = csv.DictReader(summary.read_text(encoding="utf-8").splitlines())
    assert (row["file"].partition(".")[0], row["line"], row["resource"]) == ("Patient", "2", "Patient/p1")
    assert CANARY not in ran.out + ran.err + (checked / "jobs" / ran.job / "job.log").read_text()


@pytest.mark.slow
def test_the_gate_cannot_be_passed_by_continuing(
    sluice: Commands, checked: Path, fhir: Fhir, service: ScriptedServer
) -> None:
    job = sluice("pipeline", "start", "config.yaml").job
    before = posts(service)
    for _ in range(2):
        again = sluice("pipeline", "continue", "config.yaml", job)
        assert again.code == 5, again.err
    assert posts(service) == before  # the findings still count without asking again
    assert fhir.total() == 0


@pytest.mark.slow
def test_without_fail_on_error_the_reports_are_written_and_the_pipeline_goes_on(
    sluice: Commands, checked: Path, fhir: Fhir
) -> None:
    job = sluice("pipeline", "start", "config.yaml").job
    text = (checked / "config.yaml").read_text().replace("validation: {", "validation: {fail_on_error: false, ")
    (checked / "config.yaml").write_text(text)
    opened = sluice("pipeline", "continue", "config.yaml", job)
    assert opened.code == 0, opened.err
    assert fhir.total() == 3
    directory = checked / "jobs" / job / "validation"
    assert {path.name for path in directory.iterdir() if not path.name.startswith(".")} >= {
        "Patient.validation.ndjson", "summary.csv",
    }  # fmt: skip


@pytest.mark.slow
def test_corrected_data_opens_the_gate(sluice: Commands, checked: Path, fhir: Fhir) -> None:
    data = checked / "data" / "Patient.ndjson"
    job = sluice("pipeline", "start", "config.yaml").job
    data.write_text(data.read_text().replace(CANARY, "Richtig"))
    opened = sluice("pipeline", "continue", "config.yaml", job, "--from", "local_import", "--yes")
    assert opened.code == 0, opened.err
    assert fhir.total() == 3


@pytest.mark.slow
def test_corrections_after_an_approval_are_approved_and_validated_before_they_are_sent(
    sluice: Commands, checked: Path, fhir: Fhir
) -> None:
    data = checked / "data" / "Patient.ndjson"
    wrong = data.read_text()
    data.write_text(wrong.replace(CANARY, "Richtig"))
    text = (checked / "config.yaml").read_text().replace("local_import, validation", "local_import, wait, validation")
    (checked / "config.yaml").write_text(text + "report: {enabled: false}\n")
    job = sluice("pipeline", "start", "config.yaml").job
    fhir.faults({"action": "status", "status": 503, "path": "/fhir*", "method": "POST", "times": 99})
    assert sluice("pipeline", "continue", "config.yaml", job, "--approve").code == 3
    fhir.faults()
    (checked / "jobs" / job / "import_wait" / "Patient.ndjson").write_text(wrong)
    assert sluice("pipeline", "continue", "config.yaml", job).code == 0
    assert [step["state"] for step in sluice.status(job)["steps"]] == ["completed", "waiting", "pending", "pending"]
    assert sluice("pipeline", "continue", "config.yaml", job, "--approve").code == 5
    assert sluice.status(job)["findings"] == {"errors": 1, "warnings": 0, "gate": "closed"}
    assert fhir.total() == 0
