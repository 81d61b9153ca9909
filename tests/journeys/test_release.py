"""The release report at the gate: what leaves, and on whose word (document 5, §3 and §4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.gate import release
from flows.job.record import JobRecord
from flows.prefect.api import PrefectApi
from flows.prefect.artifacts import artifacts_of
from tasks.release_report.page import files
from tasks.shared.files.inventory import load
from tests.conftest import Commands, Ran, address_of, ask_prefect, wait_until
from tests.peers.gate import STOP, Maker
from tests.peers.project import Fhir

PATIENT = '{"resourceType":"Patient","id":"only-this"}\n'
WHY = "the extension is agreed with the board"
STRAIGHT = ("--set", "pipeline.enabled_steps=[local_import, send]")

pytestmark = pytest.mark.slow


class ReleaseGate:
    """A job of local_import → wait → send, and what a person does at its wait."""

    def __init__(self, sluice: Commands, project: Path, fhir: Fhir, api: str, maker: Maker) -> None:
        self.sluice, self.project, self.fhir, self.api, self.maker = sluice, project, fhir, api, maker
        config = project / "config.yaml"
        config.write_text(config.read_text().replace("report: {enabled: false}", "") + "report: {}\n")
        self.job = ""

    def configure(self, **report: object) -> None:
        config = self.project / "config.yaml"
        config.write_text(config.read_text().partition("report: {")[0] + f"report: {json.dumps(report)}\n")

    def start(self, *words: str, code: int = 0) -> Ran:
        ran = self.sluice("pipeline", "start", "config.yaml", *words)
        assert ran.code == code, ran.err
        self.job = ran.job
        return ran

    def go_on(self, *words: str, code: int = 0) -> Ran:
        ran = self.sluice("pipeline", "continue", "config.yaml", self.job, *words)
        assert ran.code == code, ran.out + ran.err
        return ran

    def report(self, *words: str) -> Ran:
        return self.sluice("job", "report", "config.yaml", self.job, *words)

    def answer(self, **answer: object) -> None:
        """Answer the wait as in the Prefect UI."""
        ask_prefect("POST", f"{self.api}/flow_runs/{self.job}/resume", {"run_input": answer})

    def correct(self) -> None:
        """Put a file in the place of those that the wait is about."""
        (self.directory / "import_wait/fixed.ndjson").write_text(PATIENT)

    @property
    def directory(self) -> Path:
        return self.project / "jobs" / self.job

    def status(self) -> Any:
        return self.sluice.status(self.job)

    def text(self) -> str:
        return self.sluice("pipeline", "status", "config.yaml", self.job).out

    def record(self) -> JobRecord:
        with PrefectApi(address_of(self.api)) as api:
            return JobRecord.of(api.read_run(self.job) or {})

    def artifacts(self) -> dict[str, str]:
        """Return the artifacts of the run by the beginnings of their titles."""
        with PrefectApi(address_of(self.api)) as api:
            return {
                str(one["description"]).partition("**:")[0]: str(one["data"]) for one in artifacts_of(api, self.job)
            }

    def form(self) -> str:
        """Return the text of the form in the UI."""
        run = ask_prefect("GET", f"{self.api}/flow_runs/{self.job}")
        keys = run["state"]["state_details"]["run_input_keyset"]
        return str(ask_prefect("GET", f"{self.api}/flow_runs/{self.job}/input/{keys['description']}"))

    def waits(self) -> None:
        status = self.status()
        assert (status["state"], status["decisions"]) == ("waiting", [])
        assert self.fhir.posts() == []


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> Maker:
    found = Maker()
    monkeypatch.setattr(release, "make", found)
    return found


@pytest.fixture
def gate(sluice: Commands, project: Path, fhir: Fhir, prefect_api: str, maker: Maker) -> ReleaseGate:
    return ReleaseGate(sluice, project, fhir, prefect_api, maker)


def covers_what_is_sent(gate: ReleaseGate, position: int | None) -> None:
    """Files, hashes and counts of the report are those that ``send`` compared before its first request."""
    report = files.read(gate.directory, position)
    read_by_send = [step for step in gate.record().steps if step.output][-1]
    sent = load(gate.directory / f".results/{read_by_send.position}-inventory.ndjson", str(read_by_send.inventory))
    assert sent is not None
    assert report is not None
    assert (report.files, report.tiles.files) == (sent.digest, len(sent.entries))
    assert report.tiles.bytes == sum(entry.size for entry in sent.entries)
    assert {(row[0], row[1], row[5]) for row in report.rows("files")} == {
        (entry.name, entry.size, entry.sha256) for entry in sent.entries
    }


def test_the_report_exists_before_the_decision_and_every_view_shows_the_decision(gate: ReleaseGate) -> None:
    started = gate.start()
    page = gate.directory / "report/step-2/release-report.html"
    assert page.stat().st_mode & 0o777 == 0o600
    assert gate.status()["report"] == {"page": str(page), "stops": 0, "looks": 0}
    for place in (started.out, gate.text(), gate.form(), gate.artifacts()["**The release report"]):
        assert str(page) in place
    body = {"flow_runs": {"id": {"any_": [gate.job]}}}
    # Prefect writes the runs of tasks from its events, some time after them.
    wait_until(
        lambda: release.NAME in {run["name"] for run in ask_prefect("POST", f"{gate.api}/task_runs/filter", body)}, 60
    )
    gate.go_on("--approve", "--by", "Anna", "--comment", "looked at it")
    assert gate.fhir.total() == 19
    assert [given.step for given in gate.maker.given] == [2]  # nothing is measured again at the end
    for kept in (files.read(gate.directory, 2), files.read(gate.directory, None)):
        assert kept is not None
        assert kept.sent == (None if kept.step else "decided")
        assert [(one.by, one.comment) for one in kept.decisions] == [("Anna", "looked at it")]
    assert "looked at it" in page.read_text()
    for place in (gate.text(), *gate.artifacts().values()):
        assert "Anna" in place
        assert "looked at it" in place
    covers_what_is_sent(gate, 2)
    covers_what_is_sent(gate, None)
    gate.go_on()
    assert gate.report("--check").code == 0
    (data,) = (gate.directory / "import").glob("core*")
    data.write_bytes(data.read_bytes()[:-1] + b" ")
    assert gate.report("--check").code == 1


@pytest.mark.parametrize("where", ["command", "ui"])
@pytest.mark.parametrize("failed", [False, True], ids=["stops", "failed"])
def test_with_stops_or_without_a_report_an_approval_needs_a_comment(
    gate: ReleaseGate, where: str, failed: bool
) -> None:
    gate.maker.findings, gate.maker.fails = [STOP], RuntimeError("Meier") if failed else None
    started = gate.start()
    for place in (started.out, gate.text(), gate.form()):
        assert ("could not be made" if failed else "stops 1" if place == gate.text() else "mothersMaidenName") in place
        assert "Meier" not in place
    assert "A release needs a comment" in gate.form()
    for comment, code in ((" ", 5), (WHY, 0)):
        if where == "ui":
            gate.answer(decision="release", by="Anna", comment=comment)
            gate.go_on()
        else:
            gate.go_on("--approve", "--by", "Anna", "--comment", comment, code=code)
        if code:
            gate.waits()
            assert "the approval has no comment" in gate.form()
            assert "the approval has no comment" in gate.status()["waiting"]["reason"]
    assert gate.fhir.total() == 19
    (decision,) = gate.status()["decisions"]
    assert (decision["comment"], decision["where"]) == (WHY, where)
    assert WHY in gate.text()


def test_a_rejection_is_in_the_report_and_wherever_somebody_looks(gate: ReleaseGate) -> None:
    gate.maker.findings = [STOP]
    gate.start()
    gate.go_on("--reject", "--by", "Bo")
    status = gate.status()
    assert (status["state"], [step["state"] for step in status["steps"]]) == (
        "cancelled", ["completed", "stopped", "pending"],
    )  # fmt: skip
    assert gate.fhir.posts() == []
    assert "rejected by Bo on the command line" in (gate.directory / "job.log").read_text(encoding="utf-8")
    assert "Bo" in gate.artifacts()["**The release report"]
    report = files.read(gate.directory, 2)
    assert report is not None
    assert [(one.by, one.approved) for one in report.decisions] == [("Bo", False)]


@pytest.mark.parametrize("how", ["job report", "resume"])
def test_a_report_that_failed_is_made_again_when_the_job_runs_again(gate: ReleaseGate, how: str) -> None:
    gate.maker.fails = OSError(28, "No space left on device", "/x")
    gate.start()
    gate.maker.fails = None
    page = files.page(gate.directory, 2)
    if how == "job report":
        assert gate.report("--check").out.startswith(str(page))
    else:
        ask_prefect("POST", f"{gate.api}/flow_runs/{gate.job}/set_state", {"state": {"type": "RUNNING"}, "force": True})
        gate.go_on()
    gate.waits()
    assert page.is_file()
    assert "could not be made" not in gate.text() + gate.form()
    gate.go_on("--approve")
    assert gate.fhir.total() == 19


def test_a_report_that_fails_at_the_end_fails_no_job_and_is_made_on_demand(gate: ReleaseGate) -> None:
    gate.maker.fails = RuntimeError("x")
    ran = gate.start(*STRAIGHT)
    assert "release report: could not be made" in ran.err
    assert (gate.status()["state"], gate.status()["report"]) == ("completed", None)
    gate.maker.fails = None
    posts = len(gate.fhir.posts())
    assert gate.report().code == 0
    assert gate.status()["report"] == {"page": str(files.page(gate.directory, None)), "stops": 0, "looks": 0}
    assert len(gate.fhir.posts()) == posts


def test_a_job_that_sends_nothing_and_asks_nobody_gets_a_report_on_demand(gate: ReleaseGate) -> None:
    config = gate.project / "config.yaml"
    config.write_text(config.read_text().replace("local_import, wait, send", "local_import"))
    gate.start()
    assert gate.status()["report"] is None
    gate.go_on()
    assert gate.maker.given == []
    for _ in range(2):
        assert gate.report().code == 0
    assert len(gate.maker.given) == 1
    assert gate.status()["report"]["page"] == str(files.page(gate.directory, None))


def test_corrections_are_reported_before_they_can_be_approved(gate: ReleaseGate) -> None:
    gate.start()
    gate.correct()
    gate.go_on("--approve", code=5)
    gate.waits()
    assert [file.name for file in gate.maker.given[-1].leaving.files] == ["import_wait/fixed.ndjson"]
    assert [one.name for one in gate.maker.given[-1].corrected] == ["import_wait/fixed.ndjson"]
    gate.go_on("--approve")
    assert gate.fhir.total() == 1
    covers_what_is_sent(gate, 2)


def test_without_a_wait_a_stop_is_told_and_kept(gate: ReleaseGate) -> None:
    gate.maker.findings = [STOP]
    started = gate.start(*STRAIGHT)
    assert gate.fhir.total() == 19
    assert "  Do not release. 1 reason to stop." in started.out  # before they leave
    assert "  Sent without a decision, despite 1 reason to stop.\n" in started.out
    assert gate.artifacts()["**The release report"].startswith("## Sent without a decision, despite 1 reason to stop\n")
    assert "mothersMaidenName" in (gate.directory / "job.log").read_text()
    assert gate.record().shown[2].stops == 1
    covers_what_is_sent(gate, 2)


@pytest.mark.parametrize("missing", [False, True])
def test_without_a_wait_on_stop_fail_ends_the_job_before_the_first_request(gate: ReleaseGate, missing: bool) -> None:
    gate.configure(on_stop="fail")
    gate.maker.findings = [STOP]
    gate.maker.fails = RuntimeError("x") if missing else None
    reference = "report-missing" if missing else "report-stops"
    assert f"error[{reference}]" in gate.start(*STRAIGHT, code=5).err
    status = gate.status()
    assert (status["state"], status["error"]["reference"]) == ("failed", reference)
    gate.go_on(code=5)
    assert gate.fhir.posts() == []
    assert len(gate.maker.given) == (2 if missing else 1)  # one that is there is not made again
    gate.maker.findings, gate.maker.fails = [], None
    gate.go_on("--set", "report.k=6")
    assert gate.fhir.total() == 19


def test_without_reports_the_gate_asks_all_the_same(gate: ReleaseGate) -> None:
    gate.configure(enabled=False)
    gate.maker.findings = [STOP]
    gate.start()
    gate.go_on("--approve")
    assert gate.fhir.total() == 19
    assert gate.maker.given == []
    assert not (gate.directory / "report").exists()


def test_a_report_that_is_measured_has_no_value_of_the_data(
    sluice: Commands, project: Path, fhir: Fhir, prefect_api: str
) -> None:
    gate = ReleaseGate(sluice, project, fhir, prefect_api, Maker())
    (one,) = (project / "data").glob("batch-0*")
    one.write_text(one.read_text().replace("Umläut", "Kanarienvogel"))
    assert "Kanarienvogel" in one.read_text()
    started = gate.start()
    assert "STOP" in started.out  # names are left
    place = gate.directory / "report/step-2"
    texts = [started.out, started.err, gate.form(), gate.text(), *gate.artifacts().values()]
    texts += [(place / f"release-report.{kind}").read_text(encoding="utf-8") for kind in ("html", "json")]
    assert not [text for text in texts if "Kanarienvogel" in text]
