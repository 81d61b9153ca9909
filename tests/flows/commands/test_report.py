"""``job report`` (document 5, section 3): what it prints and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
import webbrowser
from pathlib import Path

import jsonschema
import pytest

from flows.job.waiting import Shown
from flows.run import run
from tasks.release_report.page import files
from tasks.release_report.report.document import ReleaseReport
from tasks.shared.files.inventory import take_inventory
from tasks.shared.stop import Stop
from tests.conftest import ROOT
from tests.peers import release_report as reports
from tests.peers.prefect import recorded

STEPS = "pipeline: {enabled_steps: [local_import]}\nservices: {local_import: {dir: data}}\n"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "study.yaml"
    path.write_text(f"jobs_dir: {tmp_path}/jobs\n{STEPS}")
    job = tmp_path / "jobs" / reports.JOB
    files.write(job, reports.rich())
    record_reports(monkeypatch, job, {"3": shown_of(reports.rich())})
    return str(path)


def record_reports(monkeypatch: pytest.MonkeyPatch, job: Path, shown: dict[str, Shown]) -> None:
    recorded(monkeypatch, "flows.job.session", job, shown)


def shown_of(report: ReleaseReport) -> Shown:
    """Return the entry of a report in the record."""
    return Shown(page=str(files.page(Path(), report.step)))


def test_the_page_is_named_then_the_answer_and_the_code_is_0(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["job", "report", config, reports.JOB]) == 0
    path, answer, *rest = capsys.readouterr().out.splitlines()
    assert Path(path).name == "release-report.html"
    assert Path(path).is_file()
    assert answer == "Do not release. 3 reasons to stop."
    assert any(reports.MAIDEN in line for line in rest)


def test_a_stop_is_code_5_only_with_check_and_the_report_is_the_one_made_last(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["job", "report", config, reports.JOB, "--check"]) == 5
    job = tmp_path / "jobs" / reports.JOB
    (job / "import").mkdir()
    (job / "import/a.ndjson").write_text("{}\n")
    covered = take_inventory(job, [job / "import"], stop=Stop()).digest
    last = reports.clean(step=None).model_copy(update={"files": covered})
    files.write(job, last)
    assert run(["job", "report", config, reports.JOB, "--check"]) == 5  # the record does not know it
    record_reports(monkeypatch, job, {"3": shown_of(reports.rich()), "end": shown_of(last)})
    assert run(["job", "report", config, reports.JOB, "--check"]) == 0
    (job / "import/a.ndjson").write_text("[]\n")
    assert run(["job", "report", config, reports.JOB, "--check"]) == 1
    assert run(["job", "report", config, reports.JOB]) == 0


def test_a_report_that_could_not_be_made_is_said_with_why(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = {"3": shown_of(reports.rich()), "end": Shown(failed="no space left (report/)")}
    record_reports(monkeypatch, tmp_path / "jobs" / reports.JOB, shown)
    assert run(["job", "report", config, reports.JOB, "--check"]) == 2
    assert "error[no-report]: this job has no release report\n  no space left (report/)" in capsys.readouterr().err


def test_json_is_the_document_as_its_schema_says(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads((ROOT / "docs/schemas/release-report.schema.json").read_text())
    assert run(["job", "report", config, reports.JOB, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema)
    assert document["k"] == 5


def test_open_opens_the_page(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []

    def browser(address: str) -> bool:
        opened.append(address)
        return len(opened) == 1

    monkeypatch.setattr(webbrowser, "open", browser)
    page = files.page(tmp_path / "jobs" / reports.JOB, 3)
    assert run(["job", "report", config, reports.JOB, "--open"]) == 0
    assert capsys.readouterr().err == ""
    assert run(["job", "report", config, reports.JOB, "--open", "--json"]) == 0
    assert "no browser" in capsys.readouterr().err
    assert opened == [page.as_uri()] * 2


@pytest.mark.parametrize(
    ("job", "reference", "code"),
    [("x", "job-id", 2), ("0b2c4a5e-1111-4222-8333-000000000000", "job-elsewhere", 2)],
)
def test_a_job_that_is_none_is_said(
    config: str, capsys: pytest.CaptureFixture[str], job: str, reference: str, code: int
) -> None:
    assert run(["job", "report", config, job]) == code
    assert f"error[{reference}]" in capsys.readouterr().err


def test_a_job_without_a_report_and_one_with_a_damaged_one_are_said(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = files.document(tmp_path / "jobs" / reports.JOB, 3)
    path.write_text("{}")
    assert run(["job", "report", config, reports.JOB]) == 1
    assert "error[report-damaged]" in capsys.readouterr().err
    path.unlink()
    assert run(["job", "report", config, reports.JOB]) == 2
    assert "error[no-report]" in capsys.readouterr().err
    record_reports(monkeypatch, tmp_path / "jobs" / reports.JOB, {})
    assert run(["job", "report", config, reports.JOB]) == 2
    assert "error[no-report]" in capsys.readouterr().err


@pytest.mark.slow
def test_it_never_imports_prefect() -> None:
    code = "import sys, flows.commands.job; sys.exit('prefect' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
