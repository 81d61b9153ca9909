"""The release report at the gate: what leaves, and on whose word (document 5, §3 and §4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.engine.flow_runs import artifacts_of
from flows.gate import release
from flows.job.record import JobRecord
from flows.prefect.api import PrefectApi
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
        assert (status["state"], status["approvals"]) == ("waiting", [])
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
    assert gate.status()["report"] == str(page)
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


@pytest.mark.parametrize("where", ["command", "form"])
@pytest.mark.parametrize("missing", [False, True], ids=["stops", "missing"])
def test_with_stops_or_without_a_report_an_approval_needs_a_comment(
    gate: ReleaseGate, where: str, missing: bool
) -> None:
    gate.maker.findings, gate.maker.fails = [STOP], RuntimeError("Meier") if missing else None
    started = gate.start()
    said = "the release report is missing" if missing else "mothersMaidenName"
    for place in (started.out, gate.text(), gate.form(), gate.artifacts()["**The release report"]):
        assert ("missing" if missing else said) in place
        assert "Meier" not in place
    assert "A release needs a comment" in gate.form()
    if where == "form":
        gate.answer(decision="release", by="Anna", comment=" \u200b")
        assert "no comment is given" in gate.go_on().out
        assert "no comment is given" in gate.form()
        gate.waits()
        gate.answer(decision="release", by="Anna", comment=WHY)
        gate.go_on()
    else:
        refused = gate.go_on("--approve", "--by", "Anna", code=5)
        if missing:
            assert "nothing is decided: there is no release report" in refused.out  # it was tried again
        else:
            assert "error[report-stops]" in refused.err
            assert "--approve --comment TEXT" in refused.err
        gate.waits()
        gate.go_on("--approve", "--by", "Anna", "--comment", WHY)
    assert gate.fhir.total() == 19
    (approval,) = gate.status()["approvals"]
    assert (approval["comment"], approval["where"]) == (WHY, "ui" if where == "form" else "cli")
    assert WHY in gate.text()


@pytest.mark.parametrize("where", ["on the command line", "in the Prefect UI"])
def test_a_rejection_needs_no_comment_and_is_told_wherever_somebody_looks(gate: ReleaseGate, where: str) -> None:
    gate.maker.findings = [STOP]
    gate.start()
    if where == "in the Prefect UI":
        gate.answer(decision="reject", by="Bo")
        gate.text()  # whoever looks next takes the answer
    else:
        gate.go_on("--reject", "--by", "Bo")
    status = gate.status()
    assert (status["state"], [step["state"] for step in status["steps"]]) == (
        "cancelled", ["completed", "stopped", "pending"],
    )  # fmt: skip
    assert gate.fhir.posts() == []
    said = f"the job is cancelled: rejected by Bo {where}"
    assert said in (gate.directory / "job.log").read_text(encoding="utf-8").splitlines()[-1]
    wanted = {"logs": {"flow_run_id": {"any_": [gate.job]}}, "sort": "TIMESTAMP_ASC", "limit": 200}
    *_, last = ask_prefect("POST", f"{gate.api}/logs/filter", wanted)
    assert last["message"].startswith(said)
    assert "Bo" in gate.artifacts()["**The release report"]
    report = files.read(gate.directory, 2)
    assert report is not None
    assert [(one.by, one.approved) for one in report.decisions] == [("Bo", False)]
    (row,) = [line for line in gate.sluice("job", "list", "config.yaml").out.splitlines() if gate.job in line]
    assert f": rejected by Bo {where}" in row


@pytest.mark.parametrize("how", ["continue", "--approve", "job report", "form"])
@pytest.mark.parametrize("gone", [False, True], ids=["failed", "gone"])
def test_a_report_that_is_not_there_is_made_by_whoever_looks_next(gate: ReleaseGate, how: str, gone: bool) -> None:
    gate.maker.fails = None if gone else OSError(28, "No space left on device", "/x")
    gate.start()
    gate.maker.fails = None
    page = files.page(gate.directory, 2)
    page.unlink(missing_ok=True)
    if how == "job report":
        assert gate.report("--check").out.startswith(str(page))
    elif how == "form":
        gate.answer(decision="release", by="")  # no answer
        gate.go_on()
    else:
        gate.go_on(*([how] if how == "--approve" else []), code=5 if how == "--approve" else 0)
    gate.waits()
    assert page.is_file()
    assert "missing" not in gate.text() + gate.form()
    gate.go_on("--approve")
    assert gate.fhir.total() == 19


def test_a_report_that_fails_at_the_end_fails_no_job_and_is_made_again(gate: ReleaseGate) -> None:
    gate.maker.fails = RuntimeError("x")
    ran = gate.start(*STRAIGHT)
    assert "release report: missing" in ran.err
    assert gate.status()["state"] == "completed"
    gate.maker.fails = None
    posts = len(gate.fhir.posts())
    assert "there is no release report; it is made now" in gate.go_on().out
    assert gate.status()["report"] == str(files.page(gate.directory, None))
    assert len(gate.fhir.posts()) == posts


def test_a_job_that_sends_nothing_and_asks_nobody_gets_a_report_on_demand(gate: ReleaseGate) -> None:
    config = gate.project / "config.yaml"
    config.write_text(config.read_text().replace("local_import, wait, send", "local_import"))
    why = "the job has no send or wait step, so no release report was made"
    assert why in gate.start().out
    assert gate.status()["report"] is None
    gate.go_on()
    assert gate.maker.given == []
    for _ in range(2):
        assert gate.report().code == 0
    assert len(gate.maker.given) == 1
    assert gate.status()["report"] == str(files.page(gate.directory, None))
    assert why not in gate.text() + "".join(gate.artifacts().values())


@pytest.mark.parametrize("how", ["continue", "--approve", "form"])
@pytest.mark.parametrize("enabled", [True, False])
def test_corrections_that_were_not_shown_are_shown_before_they_can_be_approved(
    gate: ReleaseGate, how: str, enabled: bool
) -> None:
    gate.configure(enabled=enabled)
    gate.start()
    gate.correct()
    if how == "form":
        gate.answer(decision="release", by="Anna")
    approves = enabled and how == "--approve"
    again = gate.go_on(*(["--approve"] if approves else []), code=5 if approves else 0)
    gate.waits()
    assert f"send will read the corrected files in {gate.directory}/import_wait" in gate.text()
    if how == "form":
        assert "added: import_wait/fixed.ndjson" in again.out
    else:
        assert "nothing is decided" in again.out
    if enabled:
        assert [file.name for file in gate.maker.given[-1].leaving.files] == ["import_wait/fixed.ndjson"]
        assert [one.name for one in gate.maker.given[-1].corrected] == ["import_wait/fixed.ndjson"]
    gate.go_on("--approve")
    assert gate.fhir.total() == 1
    if enabled:
        covers_what_is_sent(gate, 2)


def test_a_byte_changed_after_the_approval_stops_before_the_first_request(gate: ReleaseGate) -> None:
    gate.start()
    gate.answer(decision="release", by="Anna")
    (changed,) = (gate.directory / "import").glob("batch-0*")
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    assert f"changed: import/{changed.name}" in gate.go_on().out
    assert gate.maker.given[-1].changed == (f"import/{changed.name}",)
    gate.waits()
    assert "error[edited-in-place]" in gate.go_on("--approve", code=1).err
    assert gate.fhir.posts() == []


@pytest.mark.parametrize("approved", [False, True], ids=["before the approval", "after it"])
def test_another_destination_than_the_one_shown_is_asked_about_anew(gate: ReleaseGate, approved: bool) -> None:
    gate.start("--set", f"services.send.url={gate.fhir.url.replace('127.0.0.1', 'localhost')}")
    here = ("--set", f"services.send.url={gate.fhir.url}")
    if approved:
        gate.fhir.faults({"action": "status", "status": 503, "path": "/fhir*", "method": "POST", "times": 99})
        gate.go_on("--approve", code=3)
        gate.fhir.faults()
        again = gate.go_on(*here)
    else:
        again = gate.go_on("--approve", *here, code=5)
    assert "the destination or the settings" in again.out
    status = gate.status()
    assert (status["state"], status["approvals"], gate.fhir.total()) == ("waiting", [], 0)
    gate.go_on("--approve")
    assert gate.fhir.total() == 19


def test_where_the_data_stay_inside_an_approval_needs_no_comment(gate: ReleaseGate) -> None:
    gate.maker.findings = [STOP]
    gate.start("--set", "pipeline.enabled_steps=[local_import, wait]")
    for place in (gate.form(), gate.text()):
        assert "decision sends no data" in place
    assert gate.maker.given[0].destination is None
    gate.go_on("--approve")
    assert gate.status()["state"] == "completed"


def test_without_a_wait_a_stop_is_told_and_kept(gate: ReleaseGate) -> None:
    gate.maker.findings = [STOP]
    started = gate.start(*STRAIGHT)
    assert gate.fhir.total() == 19
    assert "release report: Do not release. 1 reason to stop." in started.out  # before they leave
    assert "release report: Sent without a decision, despite 1 reason to stop.\n" in started.out
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
