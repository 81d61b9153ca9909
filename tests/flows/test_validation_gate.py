"""The validation gate in whole runs (document 1, "send and validation behavior"; document 3 §6, "The gate")."""

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.conftest import Commands
from tests.flows.conftest import Fhir

CANARY = "Kanarienvogel"


class Validator(BaseHTTPRequestHandler):
    """Every resource with the family name of the canary is an error; the answer quotes it, as real ones do."""

    def do_GET(self) -> None:
        self.answer(200, {"resourceType": "OperationOutcome", "issue": []})

    def do_POST(self) -> None:
        bundle = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        issues = [
            {
                "severity": "error", "code": "structure", "diagnostics": f"{CANARY} is not allowed",
                "expression": [f"Bundle.entry[{number}].resource.name[0]"],
            }
            for number, entry in enumerate(bundle["entry"])
            if CANARY in json.dumps(entry)
        ]  # fmt: skip
        self.answer(200, {"resourceType": "OperationOutcome", "issue": issues or [
            {"severity": "information", "code": "informational", "diagnostics": "All OK"}
        ]})  # fmt: skip

    def answer(self, status: int, body: dict[str, object]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/fhir+json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def validator() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Validator) as server:
        server.asked = []  # type: ignore[attr-defined]
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def service() -> Iterator[ThreadingHTTPServer]:
    with validator() as server:
        yield server


@pytest.fixture
def checked(tmp_path: Path, fhir: Fhir, service: ThreadingHTTPServer) -> Path:
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
  validation: {{url: "http://127.0.0.1:{service.server_port}"}}
  send: {{send_as: direct_resource_load, url: "{fhir.url}"}}
pipeline: {{enabled_steps: [local_import, validation, send]}}
retry: {{max_attempts: 2, initial_backoff_ms: 10, max_backoff_ms: 20}}
jobs_dir: jobs
"""
    )
    return tmp_path


def posts(service: ThreadingHTTPServer) -> int:
    return len(service.asked)  # type: ignore[attr-defined]


def test_findings_complete_the_step_and_fail_the_job_with_exit_code_5(
    sluice: Commands, checked: Path, fhir: Fhir
) -> None:
    ran = sluice("pipeline", "start", "config.yaml")
    assert ran.code == 5, ran.err
    assert "error[validation-findings]: validation found 1 errors in 1 resources" in ran.err
    assert "fail_on_error: false" in ran.err
    status = json.loads(sluice("pipeline", "status", "config.yaml", ran.job, "--json").out)
    assert status["state"] == "failed"
    assert [step["state"] for step in status["steps"]] == ["completed", "completed", "pending"]
    assert status["error"]["reference"] == "validation-findings"
    assert not status["error"]["transient"]
    assert fhir.total() == 0
    summary = checked / "jobs" / ran.job / "validation" / "summary.csv"
    (row,) = csv.DictReader(summary.read_text(encoding="utf-8").splitlines())
    assert (row["file"].partition(".")[0], row["line"], row["resource"]) == ("Patient", "2", "Patient/p1")
    assert CANARY not in ran.out + ran.err + (checked / "jobs" / ran.job / "job.log").read_text()


def test_the_gate_cannot_be_passed_by_continuing(
    sluice: Commands, checked: Path, fhir: Fhir, service: ThreadingHTTPServer
) -> None:
    job = sluice("pipeline", "start", "config.yaml").job
    before = posts(service)
    for _ in range(2):
        again = sluice("pipeline", "continue", "config.yaml", job)
        assert again.code == 5, again.err
    assert posts(service) == before  # the findings still count without asking again
    assert fhir.total() == 0


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


def test_corrected_data_opens_the_gate(sluice: Commands, checked: Path, fhir: Fhir) -> None:
    data = checked / "data" / "Patient.ndjson"
    job = sluice("pipeline", "start", "config.yaml").job
    data.write_text(data.read_text().replace(CANARY, "Richtig"))
    alone = sluice("job", "run", "config.yaml", job, "--step", "local_import", "--force")
    assert alone.code == 0, alone.err
    opened = sluice("pipeline", "continue", "config.yaml", job)
    assert opened.code == 0, opened.err
    assert fhir.total() == 3


def test_a_step_run_alone_meets_the_gate_too(sluice: Commands, checked: Path) -> None:
    job = sluice("pipeline", "start", "config.yaml").job
    alone = sluice("job", "run", "config.yaml", job, "--step", "validation", "--force")
    assert alone.code == 5, alone.err


def test_a_validation_service_that_fails_is_no_finding(
    sluice: Commands, checked: Path, service: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Validator, "do_POST", lambda self: self.answer(503, {}))
    ran = sluice("pipeline", "start", "config.yaml")
    assert ran.code == 3, ran.err
    assert "validation-findings" not in ran.err
