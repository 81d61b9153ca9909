"""The commands of the page about the release report, word for word."""

from __future__ import annotations

import json
import shlex
import webbrowser
from pathlib import Path

import pytest

from flows.run import run
from tasks.release_report.page import files
from tasks.release_report.report.document import sha256
from tasks.shared.report import Shown
from tests.docs.pages import example
from tests.peers import release_report as reports
from tests.peers.prefect import recorded

SPOKEN = "sluice job report CONFIG JOB --json"
"""In a sentence of the page: what the record of processing activities is made of."""


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(webbrowser, "open", lambda _: True)
    Path("study.yaml").write_text("jobs_dir: jobs\npipeline: {enabled_steps: [local_import]}\n")
    place = tmp_path / "jobs" / reports.JOB
    page = files.write(place, reports.rich(), reports.rich(recipient=True, k=11), reports.files())
    shown = Shown(sha256=sha256(reports.rich()), page=str(page.relative_to(place)))
    recorded(monkeypatch, "flows.commands.report", place, {"3": shown})
    return place


def called(line: str) -> int:
    words = shlex.split(line.replace("CONFIG", "study.yaml"), comments=True)
    assert words[0] == "sluice"
    return run([reports.JOB if word == "JOB" else word for word in words[1:]])


def test_the_commands_for_the_engineer() -> None:
    lines = example("docs/release-report.md", "sluice job report study.yaml JOB").text.splitlines()
    assert [called(line) for line in lines] == [0, 0, 5, 0]
    assert json.loads(Path("recipient.json").read_text())["recipient"] is True


def test_the_record_of_processing_finds_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert called(SPOKEN) == 0
    document = json.loads(capsys.readouterr().out)
    sections = {section["number"]: section for section in document["sections"]}
    assert {"purpose", "legal_basis"} <= {fact["name"] for fact in sections[3]["facts"]}
    assert "types" in {table["name"] for table in sections[6]["tables"]}
    assert "patients" in document["tiles"]


def test_the_files_are_called_as_the_page_says(job: Path) -> None:
    page = Path(__file__).parents[2].joinpath("docs/release-report.md").read_text()
    for path in (job / "report/step-3").iterdir():
        assert f"`{path.name}`" in page
    assert "`report/step-3/`" in page
