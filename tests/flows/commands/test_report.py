"""``job report``: what it prints and how it ends."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path

import jsonschema
import pytest

from flows.run import run
from tests.conftest import ROOT
from tests.peers.prefect import recorded
from tests.peers.report import document_of, page_of
from tests.tasks.release_report.reporting import patient, summary, write

STEPS = "pipeline: {enabled_steps: [local_import]}\nservices: {local_import: {dir: data}}\n"
JOB = "0b2c4a5e-1111-4222-8333-444455556666"
MADE = {"3": {"page": "report/release-report.html"}}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Return the directory of a job whose report has a stop."""
    place = tmp_path / "jobs" / JOB
    write(place, "a.ndjson", patient("1", name=[{"family": "x"}]))
    summary(place)
    return place


@pytest.fixture
def config(tmp_path: Path, job: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "study.yaml"
    path.write_text(f"jobs_dir: {tmp_path}/jobs\n{STEPS}")
    recorded(monkeypatch, "flows.job.find", job, MADE)
    return str(path)


def test_the_page_is_named_then_the_verdict_and_the_code_is_0(
    config: str, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["job", "report", config, JOB]) == 0
    path, verdict, *rest = capsys.readouterr().out.splitlines()
    assert path == str(page_of(job))
    assert verdict == "Do not release: 1 reason to stop"
    assert any("Patient.name.family" in line for line in rest)


def test_a_stop_is_code_5_only_with_check(config: str, job: Path) -> None:
    assert run(["job", "report", config, JOB, "--check"]) == 5
    write(job, "a.ndjson", *(patient(str(number)) for number in range(9)))
    summary(job)
    assert run(["job", "report", config, JOB, "--check"]) == 0


def test_a_report_that_could_not_be_made_is_said_with_why(
    config: str, job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(monkeypatch, "flows.job.find", job, MADE | {"4": {"failed": "no space left (report/)"}})
    assert run(["job", "report", config, JOB, "--check"]) == 2
    assert "error[no-report]: this job has no release report\n  no space left (report/)" in capsys.readouterr().err


def test_json_is_the_document_as_its_schema_says(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads((ROOT / "docs/schemas/release-report.schema.json").read_text())
    assert run(["job", "report", config, JOB, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema)
    assert document["k"] == 5


def test_open_opens_the_page(
    config: str, job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []

    def browser(address: str) -> bool:
        opened.append(address)
        return len(opened) == 1

    monkeypatch.setattr(webbrowser, "open", browser)
    assert run(["job", "report", config, JOB, "--open"]) == 0
    assert capsys.readouterr().err == ""
    assert run(["job", "report", config, JOB, "--open", "--json"]) == 0
    assert "no browser" in capsys.readouterr().err
    assert opened == [page_of(job).as_uri()] * 2


@pytest.mark.parametrize(
    ("job_id", "reference"), [("x", "job-id"), ("0b2c4a5e-1111-4222-8333-000000000000", "job-elsewhere")]
)
def test_a_job_that_is_none_is_said(
    config: str, capsys: pytest.CaptureFixture[str], job_id: str, reference: str
) -> None:
    assert run(["job", "report", config, job_id]) == 2
    assert f"error[{reference}]" in capsys.readouterr().err


def test_a_job_without_a_report_and_one_with_a_damaged_one_are_said(
    config: str, job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = document_of(job)
    path.write_text("{}")
    assert run(["job", "report", config, JOB]) == 1
    assert "error[report-damaged]" in capsys.readouterr().err
    for spoil in (path.unlink, lambda: recorded(monkeypatch, "flows.job.find", job, {})):
        spoil()
        assert run(["job", "report", config, JOB]) == 2
        assert "error[no-report]" in capsys.readouterr().err
