"""``job report`` (document 5, section 3): what it prints, where it writes, how it ends."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import webbrowser
from pathlib import Path

import jsonschema
import pytest

from flows.run import run
from tasks.release_report import files
from tests.conftest import ROOT
from tests.peers import release_report as reports

STEPS = "pipeline: {enabled_steps: [local_import]}\nservices: {local_import: {dir: data}}\n"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "study.yaml"
    path.write_text(f"jobs_dir: {tmp_path}/jobs\n{STEPS}")
    job = tmp_path / "jobs" / reports.JOB
    files.write(job, reports.rich(), reports.rich(recipient=True, k=11), reports.files())
    return str(path)


def test_the_page_is_named_then_the_answer_and_the_code_is_0(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["job", "report", config, reports.JOB]) == 0
    path, answer, *rest = capsys.readouterr().out.splitlines()
    assert Path(path).name == "release-report.html"
    assert Path(path).is_file()
    assert answer == "Do not release. 3 reasons to stop."
    assert any(reports.MAIDEN in line for line in rest)


def test_a_stop_is_code_5_only_with_check(config: str, tmp_path: Path) -> None:
    assert run(["job", "report", config, reports.JOB, "--check"]) == 5
    later = reports.clean(step=None, made="2026-11-24T05:40:12+00:00")
    files.write(tmp_path / "jobs" / reports.JOB, later, None, ())
    assert run(["job", "report", config, reports.JOB, "--check"]) == 0


def test_json_is_the_document_as_its_schema_says(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads((ROOT / "docs/schemas/release-report.schema.json").read_text())
    for more, k in (([], 5), (["--for", "recipient"], 11)):
        assert run(["job", "report", config, reports.JOB, "--json", *more]) == 0
        document = json.loads(capsys.readouterr().out)
        jsonschema.validate(document, schema)
        assert document["k"] == k


def test_a_copy_is_written_private_where_it_is_asked_for(config: str, tmp_path: Path) -> None:
    for more, name in (([], "r.html"), (["--json"], "r.json")):
        assert run(["job", "report", config, reports.JOB, "--for", "recipient", "--out", name, *more]) == 0
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    page = files.page(tmp_path / "jobs" / reports.JOB, 3, recipient=True)
    assert (tmp_path / "r.html").read_text() == page.read_text()
    assert json.loads((tmp_path / "r.json").read_text())["recipient"] is True


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
    [("x", "job-id", 2), ("0b2c4a5e-1111-4222-8333-000000000000", "job-unknown", 2)],
)
def test_a_job_that_is_none_is_said(
    config: str, capsys: pytest.CaptureFixture[str], job: str, reference: str, code: int
) -> None:
    assert run(["job", "report", config, job]) == code
    assert f"error[{reference}]" in capsys.readouterr().err


def test_a_job_without_a_report_and_one_with_a_damaged_one_are_said(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = files.document(tmp_path / "jobs" / reports.JOB, 3)
    path.write_text("{}")
    assert run(["job", "report", config, reports.JOB]) == 1
    assert "error[report-damaged]" in capsys.readouterr().err
    path.unlink()
    assert run(["job", "report", config, reports.JOB]) == 2
    assert "error[no-report]" in capsys.readouterr().err


@pytest.mark.slow
def test_it_never_imports_prefect() -> None:
    code = "import sys, flows.commands.report; sys.exit('prefect' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
