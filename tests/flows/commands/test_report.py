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
from tasks.release_report.page import files
from tasks.release_report.report.document import ReleaseReport, ReportSection, sha256
from tasks.release_report.report.outline import table
from tasks.shared.files.inventory import take_inventory
from tasks.shared.report import Shown
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
    files.write(job, reports.rich(), reports.rich(recipient=True, k=11), reports.files())
    record_reports(monkeypatch, job, {"3": shown_of(reports.rich())})
    return str(path)


def record_reports(monkeypatch: pytest.MonkeyPatch, job: Path, shown: dict[str, Shown]) -> None:
    recorded(monkeypatch, "flows.commands.report", job, shown)


def shown_of(report: ReleaseReport) -> Shown:
    """Return the entry of a report in the record."""
    return Shown(sha256=sha256(report), page=str(files.page(Path(), report.step)))


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
    later, last = (reports.clean(step=step).model_copy(update={"files": covered}) for step in (5, None))
    for report in (later, last):
        files.write(job, report, None, ())
    assert run(["job", "report", config, reports.JOB, "--check"]) == 5  # of files that the record does not know
    by_step = {"3": shown_of(reports.rich()), "5": shown_of(later)}
    record_reports(monkeypatch, job, by_step)
    assert run(["job", "report", config, reports.JOB, "--check"]) == 0
    record_reports(monkeypatch, job, by_step | {"end": shown_of(reports.rich())})
    assert run(["job", "report", config, reports.JOB, "--check"]) == 1
    record_reports(monkeypatch, job, by_step | {"end": shown_of(last)})
    assert run(["job", "report", config, reports.JOB, "--check"]) == 0
    (job / "import/a.ndjson").write_text("[]\n")
    assert run(["job", "report", config, reports.JOB, "--check"]) == 1
    assert run(["job", "report", config, reports.JOB]) == 0


@pytest.mark.parametrize("more", [[], ["--check"], ["--json"], ["--for", "recipient"], ["--open"]])
@pytest.mark.parametrize("what", ["all", "page"])
def test_a_report_that_somebody_edited_is_not_believed(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], what: str
) -> None:
    if what == "all":
        files.write(tmp_path / "jobs" / reports.JOB, reports.clean(), reports.clean(recipient=True), ())
    else:  # the JSON beside it is as it was made
        page = files.page(tmp_path / "jobs" / reports.JOB, 3)
        page.write_text(page.read_text().replace("Do not release", "Release it", 1))
    assert run(["job", "report", config, reports.JOB, *more]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "error[report-differs]: the release report is missing or was edited" in said.err


def test_a_page_that_another_version_rendered_is_believed_by_its_json(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = table("versions", [["sluice", "0.0.1"]])
    report = reports.rich()
    report = report.model_copy(
        update={"sections": (*report.sections, ReportSection(number=18, name="rules", tables=(versions,)))}
    )
    job = tmp_path / "jobs" / reports.JOB
    files.write(job, report, None, ())
    files.page(job, 3).write_text("<html>as it was rendered then</html>")
    record_reports(monkeypatch, job, {"3": shown_of(report)})
    assert run(["job", "report", config, reports.JOB]) == 0


def test_a_report_that_could_not_be_made_is_said_with_why(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = {"3": shown_of(reports.rich()), "end": Shown(missing="no space left (report/)")}
    record_reports(monkeypatch, tmp_path / "jobs" / reports.JOB, shown)
    assert run(["job", "report", config, reports.JOB, "--check"]) == 2
    assert "error[no-report]: the release report is missing\n  no space left (report/)" in capsys.readouterr().err


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


def test_a_copy_takes_the_place_of_a_file_and_of_nothing_else(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link").symlink_to("target")
    for name, reference in (("no/such/r.html", "file-not-found"), ("link", "file-unreadable")):
        assert run(["job", "report", config, reports.JOB, "--out", name]) == 2
        assert f"error[{reference}]" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
    assert (tmp_path / "link").is_symlink()


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
    record_reports(monkeypatch, tmp_path / "jobs" / reports.JOB, {})
    assert run(["job", "report", config, reports.JOB]) == 2
    assert "error[no-report]" in capsys.readouterr().err


@pytest.mark.slow
def test_it_never_imports_prefect() -> None:
    code = "import sys, flows.commands.report; sys.exit('prefect' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
