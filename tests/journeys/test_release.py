"""The release report at the gate: what leaves, and on whose word (document 5, §3 and promises 6, 9 and 10)."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployments.sandbox.data import DEMO_CRTDL
from flows.engine.api import PrefectApi
from flows.engine.flow_runs import artifacts_of
from flows.gate import release
from flows.job.record import JobRecord
from tasks.release_report.page import files
from tasks.release_report.report.document import sha256
from tasks.shared.files.inventory import Inventory, InventoryEntry, load
from tests.conftest import Commands, Ran, address_of, ask_prefect, wait_until
from tests.peers import release_report as reports
from tests.peers.gate import LOOK, STOP, Maker
from tests.peers.project import Fhir

PATIENT = '{"resourceType":"Patient","id":"only-this"}\n'
WHY = "the extension is agreed with the board"

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
        assert self.status()["state"] == "waiting"
        assert self.fhir.total() == 0


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> Maker:
    found = Maker()
    monkeypatch.setattr(release, "make", found)
    return found


@pytest.fixture
def gate(sluice: Commands, project: Path, fhir: Fhir, prefect_api: str, maker: Maker) -> ReleaseGate:
    return ReleaseGate(sluice, project, fhir, prefect_api, maker)


def test_the_report_exists_before_the_decision_and_every_view_shows_the_decision(gate: ReleaseGate) -> None:
    started = gate.start()
    page = gate.directory / "report/step-2/release-report.html"
    assert str(page) in started.out
    assert page.stat().st_mode & 0o777 == 0o600
    report = files.read(gate.directory, 2)
    assert report is not None
    assert gate.status()["report"] == str(page)
    assert f"release report {page}" in gate.text()
    assert str(page) in gate.form()
    assert str(page) in gate.artifacts()["**The release report"]
    body = {"flow_runs": {"id": {"any_": [gate.job]}}}
    # Prefect writes the runs of tasks from its events, some time after them.
    wait_until(
        lambda: release.NAME in {run["name"] for run in ask_prefect("POST", f"{gate.api}/task_runs/filter", body)}, 60
    )
    assert (gate.maker.given[0].step, len(gate.maker.given)) == (2, 1)

    gate.go_on("--approve", "--by", "Anna", "--comment", "looked at it")
    assert gate.fhir.total() == 19
    (approval,) = gate.status()["approvals"]
    assert (approval["by"], approval["comment"], approval["report"]) == ("Anna", "looked at it", sha256(report))
    at_the_wait, at_the_end = files.read(gate.directory, 2), files.read(gate.directory, None)
    for kept in (at_the_wait, at_the_end):
        assert kept is not None
        assert kept.sent == (None if kept.step else "decided")
        (decision,) = kept.decisions
        assert (decision.by, decision.comment, decision.report) == ("Anna", "looked at it", sha256(report))
    assert at_the_wait is not None
    assert sha256(at_the_wait) == sha256(report)
    assert "looked at it" in page.read_text()
    assert "approved by Anna" in gate.text()
    assert "Anna" in gate.artifacts()["**The release report"]
    assert "approved by Anna" in gate.artifacts()["**The page of the job"]
    assert gate.status()["report"] == str(gate.directory / "report/release-report.html")


def test_a_stop_needs_a_reason_which_is_kept_with_what_it_overrides(gate: ReleaseGate) -> None:
    gate.maker.findings = [STOP]
    started = gate.start()
    assert "STOP" in started.out
    assert "mothersMaidenName" in started.out
    assert "mothersMaidenName" in gate.form()
    refused = gate.go_on("--approve", code=2)
    assert "error[report-stops]" in refused.err
    assert "--despite" in refused.err
    assert "To release despite the stops" in refused.out
    assert "mothersMaidenName" in refused.out
    assert "STOP: original: " in refused.err
    gate.waits()
    gate.go_on("--approve", "--by", "Anna", "--despite", " \u200b", code=2)
    gate.waits()

    released = gate.go_on("--approve", "--by", "Anna", "--despite", WHY)
    assert "To release despite the stops" not in released.out + released.err
    assert gate.fhir.total() == 19
    (approval,) = gate.status()["approvals"]
    assert (approval["despite"], approval["overridden"]) == (WHY, [STOP.key])
    assert WHY in gate.text()
    assert WHY in gate.artifacts()["**The release report"]
    page = gate.artifacts()["**The page of the job"]
    assert WHY in page.replace("\\", "")


def everywhere(gate: ReleaseGate) -> tuple[str, str, str]:
    """Return the record, the page and the JSON of the newest report, as text."""
    place = gate.directory / "report/step-2"
    page, document = (place / f"release-report.{kind}" for kind in ("html", "json"))
    return json.dumps(gate.status()), page.read_text(), document.read_text()


@pytest.mark.parametrize("where", ["cli", "ui"])
def test_a_finding_is_accepted_with_a_reason_and_the_reason_is_kept(gate: ReleaseGate, where: str) -> None:
    gate.maker.findings = [STOP, LOOK]
    gate.start()
    answers = f"{STOP.key}={WHY}", f"{LOOK.code}=as agreed with the project"
    if where == "cli":
        gate.go_on("--approve", "--by", "Anna", "--accept", answers[0], "--accept", answers[1])
    else:
        gate.answer(decision="release", by="Anna", accepted="\n".join(answers))
        gate.go_on()
    assert gate.fhir.total() == 19  # each stop has a reason of its own, so --despite is not needed
    (approval,) = gate.status()["approvals"]
    assert approval["accepted"] == {STOP.key: WHY, LOOK.key: "as agreed with the project"}
    assert (approval["overridden"], approval["despite"], approval["refused"]) == ([STOP.key], None, {})
    assert all("as agreed with the project" in one for one in everywhere(gate))
    assert "as agreed with the project" in gate.text()
    recipient = gate.directory / "report/step-2/release-report.recipient.json"
    assert "as agreed" not in recipient.read_text()


def test_more_stops_than_the_record_names_cannot_be_accepted_one_by_one(gate: ReleaseGate) -> None:
    stops = [STOP.model_copy(update={"about": f"Patient.extension({at})"}) for at in range(release.MOST + 2)]
    gate.maker.findings = [*stops]
    gate.start()
    answers = [word for one in stops[: release.MOST] for word in ("--accept", f"{one.key}={WHY}")]
    assert "error[report-stops]" in gate.go_on("--approve", "--by", "Anna", *answers, code=2).err
    gate.waits()
    gate.go_on("--approve", "--by", "Anna", *answers, "--despite", WHY)
    assert gate.status()["approvals"][0]["overridden"][-1] == "more-stops (2)"


@pytest.mark.parametrize("where", ["cli", "ui"])
def test_a_finding_that_is_not_acceptable_keeps_the_job_from_being_released(gate: ReleaseGate, where: str) -> None:
    gate.maker.findings = [LOOK]
    gate.start()
    answer = f"{LOOK.key}=no contract yet"
    if where == "cli":
        refused = gate.go_on("--approve", "--by", "Anna", "--refuse", answer, code=2)
        assert "error[finding-refused]" in refused.err
        assert "error[finding-unknown]" in gate.go_on("--approve", "--accept", "nothing=x", code=2).err
    else:
        gate.answer(decision="release", by="Anna", refused=answer)
        gate.go_on()
        assert "not acceptable (1)" in gate.form()
    gate.waits()
    gate.go_on("--reject", "--by", "Anna", "--refuse", answer)
    (approval,) = gate.status()["approvals"]
    assert (approval["approved"], approval["refused"]) == (False, {LOOK.key: "no contract yet"})
    assert all("no contract yet" in one for one in everywhere(gate))
    assert gate.fhir.total() == 0


@pytest.mark.parametrize("where", ["cli", "ui"])
def test_a_question_keeps_the_job_waiting_and_is_shown_until_and_with_the_decision(
    gate: ReleaseGate, where: str
) -> None:
    gate.maker.findings = [LOOK]
    gate.start()
    if where == "cli":
        gate.go_on("--question", "Which ward?", "--by", "Anna")
    else:
        gate.answer(decision="question", by="Anna", comment="Which ward?")
        gate.go_on()
        assert "Which ward?" in gate.form()
    gate.waits()
    assert gate.status()["waiting"]["questions"] == ["question of Anna: Which ward?"]
    assert "question of Anna: Which ward?" in gate.text()
    (page,) = [text for title, text in gate.artifacts().items() if "The page of the job" in title]
    assert "question of Anna: Which ward?" in page
    assert "pipeline continue" in page
    gate.go_on("--approve", "--by", "Berta")
    (approval,) = gate.status()["approvals"]
    assert approval["questions"] == ["question of Anna: Which ward?"]
    assert all("Which ward?" in one for one in everywhere(gate))
    assert gate.fhir.total() == 19


@pytest.mark.parametrize("next_", ["--approve", "--reject", "--question"])
def test_a_question_in_the_form_is_kept_when_a_command_comes_next(gate: ReleaseGate, next_: str) -> None:
    gate.maker.findings = [LOOK]
    gate.start()
    gate.answer(decision="question", by="Anna", comment="Which ward?")
    assert "question of Anna: Which ward?" in gate.text()
    gate.go_on(next_, *(["And when?"] if next_ == "--question" else []), "--by", "Berta")
    asked = ["question of Anna: Which ward?"]
    status = gate.status()
    if next_ == "--question":
        assert status["waiting"]["questions"] == [*asked, "question of Berta: And when?"]
        gate.correct()
        gate.go_on()  # a run of its own: the job waits again
        assert gate.status()["waiting"]["questions"] == [*asked, "question of Berta: And when?"]
        assert "Which ward?" in gate.form()
        assert "And when?" in gate.form()
        return
    (approval,) = status["approvals"]
    assert approval["questions"] == asked


def test_a_rejection_needs_no_reason_and_is_in_the_report(gate: ReleaseGate) -> None:
    gate.maker.findings = [STOP]
    gate.start()
    gate.go_on("--reject", "--by", "Bo")
    assert gate.status()["state"] == "cancelled"
    report = files.read(gate.directory, 2)
    assert report is not None
    assert [(one.by, one.approved) for one in report.decisions] == [("Bo", False)]


def test_a_rejection_keeps_answers_that_name_no_finding(gate: ReleaseGate) -> None:
    gate.maker.findings = [LOOK]
    gate.start()
    gate.answer(decision="reject", by="Bo", comment="no", refused="the names in the notes")
    (approval,) = gate.status()["approvals"]
    assert (approval["refused"], approval["comment"]) == ({}, "no\nthe names in the notes")


@pytest.mark.parametrize("where", ["on the command line", "in the Prefect UI"])
def test_a_rejection_of_a_job_that_nobody_runs_is_told_wherever_somebody_looks(gate: ReleaseGate, where: str) -> None:
    """Its log, the Logs tab, the short form, the step, the list: not only the state."""
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
    said = f"the job is cancelled: rejected by Bo {where}"
    assert said in (gate.directory / "job.log").read_text(encoding="utf-8").splitlines()[-1]
    wanted = {"logs": {"flow_run_id": {"any_": [gate.job]}}, "sort": "TIMESTAMP_ASC", "limit": 200}
    *_, last = ask_prefect("POST", f"{gate.api}/logs/filter", wanted)
    assert last["message"].startswith(said)
    assert "Bo" in gate.artifacts()["**The release report"]
    (row,) = [line for line in gate.sluice("job", "list", "config.yaml").out.splitlines() if gate.job in line]
    assert f": rejected by Bo {where}" in row
    assert "rejected, rejected" not in row


def test_the_form_without_a_reason_lets_the_job_wait_again_and_says_why(gate: ReleaseGate) -> None:
    gate.maker.findings = [STOP]
    gate.start()
    gate.answer(decision="release", by="Anna")
    assert gate.status()["state"] == "waiting"
    again = gate.go_on()
    assert "no reason is given" in again.out
    gate.waits()
    assert "no reason is given" in gate.form()
    assert "no reason is given" in gate.text()
    assert "refused" in (gate.directory / "job.log").read_text()
    gate.answer(decision="release", by="Anna", despite=WHY)
    gate.go_on()
    assert gate.fhir.total() == 19
    (approval,) = gate.status()["approvals"]
    assert (approval["where"], approval["despite"]) == ("ui", WHY)
    assert len(gate.maker.given) == 2  # at the wait, and at the end


def test_two_reviewers_are_two_people_and_the_second_sees_the_first(gate: ReleaseGate) -> None:
    gate.configure(reviewers=2)
    gate.start()
    first = gate.go_on("--approve", "--by", "Anna Data", "--comment", "one")
    assert "waiting for approval" in first.out
    gate.waits()
    assert "Anna Data" in gate.form()
    assert "first of two decisions: approved by Anna Data" in gate.text()
    same = gate.go_on("--approve", "--by", " anna data ", code=2)
    assert "error[second-reviewer]" in same.err
    gate.answer(decision="release", by="ANNA DATA")
    gate.go_on()
    gate.waits()
    gate.answer(decision="release", by="Bo", comment="two")
    gate.go_on()
    assert gate.fhir.total() == 19
    assert [(one["by"], one["where"]) for one in gate.status()["approvals"]] == [("Anna Data", "cli"), ("Bo", "ui")]
    for step in (2, None):
        report = files.read(gate.directory, step)
        assert report is not None
        assert [one.by for one in report.decisions] == ["Anna Data", "Bo"]
    assert len(gate.maker.given) == 2


def test_a_second_reviewer_may_reject_and_a_change_voids_the_first_approval(gate: ReleaseGate) -> None:
    gate.configure(reviewers=2)
    gate.start()
    gate.answer(decision="release", by="Anna")
    gate.go_on()
    gate.waits()
    gate.correct()
    again = gate.go_on("--approve", "--by", "Bo")
    assert "the job waits again" in again.out
    gate.waits()
    assert gate.status()["approvals"] == []
    gate.go_on("--approve", "--by", "Bo")
    gate.waits()
    gate.go_on("--reject", "--by", "Anna")
    assert gate.status()["state"] == "cancelled"
    assert [(one["by"], one["approved"]) for one in gate.status()["approvals"]] == [("Bo", True), ("Anna", False)]


@pytest.mark.parametrize("enabled", [True, False])
def test_two_reviewers_release_the_same_files_with_and_without_a_report(gate: ReleaseGate, enabled: bool) -> None:
    gate.configure(reviewers=2, enabled=enabled)
    gate.start()
    gate.go_on("--approve", "--by", "Anna")
    gate.correct()
    gate.go_on("--approve", "--by", "Bo")
    gate.waits()
    assert gate.status()["approvals"] == []


@pytest.mark.parametrize("fails", [OSError(28, "No space left on device", "/x"), RuntimeError("Meier")])
def test_a_report_that_fails_neither_loses_nor_releases_the_job(gate: ReleaseGate, fails: Exception) -> None:
    gate.maker.fails = fails
    started = gate.start()
    assert "the release report is missing" in started.out
    assert "Meier" not in started.err + started.out + gate.form()
    assert "missing" in gate.form()
    assert "missing" in gate.text()
    assert "missing" in gate.artifacts()["**The release report"]
    for words in (("--approve",), ()):  # each tries again to make it
        again = gate.go_on(*words)
        assert "nothing is decided: the release report could not be made" in again.out
        gate.waits()
    assert len(gate.maker.given) == 3
    gate.go_on("--approve", "--despite", "known, and looked at by hand")
    assert gate.fhir.total() == 19
    assert gate.status()["approvals"][0]["overridden"] == ["report-missing"]
    assert gate.status()["report"] is None


@pytest.mark.parametrize("place", ["release-report.html", "release-report.json", ""])
def test_what_stands_in_the_way_of_a_report_neither_loses_nor_releases_the_job(gate: ReleaseGate, place: str) -> None:
    gate.start()
    step = gate.directory / "report/step-2"
    shutil.rmtree(step)
    (step / place).mkdir(parents=True) if place else step.write_text("no directory")
    gate.correct()
    gate.go_on("--approve")
    assert "missing" in gate.text()
    gate.waits()
    gate.go_on("--approve", "--despite", "looked at by hand")
    assert gate.fhir.total() == 1


def without_stops(gate: ReleaseGate) -> None:
    document = gate.directory / "report/step-2/release-report.json"
    report = json.loads(document.read_text())
    report["findings"], report["tiles"]["stops"] = [], 0
    document.write_text(json.dumps(report))


def without_page(gate: ReleaseGate) -> None:
    (gate.directory / "report/step-2/release-report.html").unlink()


@pytest.mark.parametrize("spoil", [without_stops, without_page])
@pytest.mark.parametrize("where", ["cli", "ui"])
def test_a_report_that_somebody_touched_is_not_believed_and_made_again(
    gate: ReleaseGate, spoil: Callable[[ReleaseGate], None], where: str
) -> None:
    gate.maker.findings = [STOP]
    gate.start()
    spoil(gate)
    if where == "cli":
        again = gate.go_on("--approve", "--despite", WHY)
    else:
        gate.answer(decision="release", by="Anna", despite=WHY)
        again = gate.go_on()
    assert "the release report is missing or was edited" in again.out
    gate.waits()
    assert gate.status()["approvals"] == []
    report = files.read(gate.directory, 2)
    assert report is not None
    assert (report.tiles.stops, gate.status()["report"]) == (1, str(files.page(gate.directory, 2)))
    gate.go_on("--approve", code=2)
    gate.go_on("--approve", "--despite", WHY)
    assert gate.fhir.total() == 19


def test_the_copy_of_a_report_is_not_there_any_more_when_the_next_one_fails(gate: ReleaseGate) -> None:
    (gate.project / "site").mkdir()
    gate.configure(copy_to="site")
    gate.start()
    (copy,) = (gate.project / "site").iterdir()
    gate.maker.fails = RuntimeError("x")
    gate.correct()
    gate.go_on("--approve")
    gate.waits()
    assert not copy.exists()


@pytest.mark.parametrize("how", ["continue", "--approve", "job report", "form"])
def test_a_report_that_failed_once_is_made_by_whoever_looks_next(gate: ReleaseGate, how: str) -> None:
    gate.maker.fails = OSError(28, "No space left on device", "/x")
    gate.start()
    gate.maker.fails = None
    if how == "job report":
        ran = gate.sluice("job", "report", "config.yaml", gate.job, "--check")
        assert ran.code == 0, ran.err
        assert ran.out.startswith(str(files.page(gate.directory, 2)))
    else:
        if how == "form":
            gate.answer(decision="release", by="Anna")  # without a reason
        gate.go_on(*([how] if how.startswith("--") else []))
    gate.waits()
    assert gate.status()["report"] == str(files.page(gate.directory, 2))
    if how != "form":  # there it is said why the answer was not taken
        assert "missing" not in gate.text() + gate.form().partition("waits again")[0]
    gate.go_on("--approve")
    assert gate.fhir.total() == 19


@pytest.mark.parametrize("how", ["continue", "job report"])
def test_the_report_of_the_end_that_failed_is_made_again(gate: ReleaseGate, how: str) -> None:
    gate.start()
    gate.maker.fails = RuntimeError("x")
    gate.go_on("--approve")
    gate.maker.fails = None
    posts = len(gate.fhir.posts())
    if how == "continue":
        assert "the release report could not be made; it is made now" in gate.go_on().out
    else:
        assert gate.sluice("job", "report", "config.yaml", gate.job).code == 0
    assert gate.status()["state"] == "completed"
    assert gate.status()["report"] == str(files.page(gate.directory, None))
    assert len(gate.fhir.posts()) == posts
    asked = len(gate.maker.given)
    gate.go_on()
    assert len(gate.maker.given) == asked


def test_a_job_that_sends_nothing_and_asks_nobody_gets_a_report_on_demand(gate: ReleaseGate) -> None:
    config = gate.project / "config.yaml"
    config.write_text(config.read_text().replace("local_import, wait, send", "local_import"))
    why = "the job has no send or wait step, so no release report was made"
    assert why in gate.start().out
    assert gate.status()["report"] is None
    assert f"{why}; to make one: " in gate.text()
    assert why in "".join(gate.artifacts().values())
    gate.go_on()
    assert gate.maker.given == []
    assert gate.sluice("job", "report", "config.yaml", gate.job).code == 0
    assert gate.status()["report"] == str(files.page(gate.directory, None))
    assert gate.sluice("job", "report", "config.yaml", gate.job).code == 0
    assert len(gate.maker.given) == 1
    assert why not in gate.text() + "".join(gate.artifacts().values())


@pytest.mark.parametrize("enabled", [True, False])
def test_without_an_answer_continue_says_that_corrected_files_will_be_read(gate: ReleaseGate, enabled: bool) -> None:
    gate.configure(enabled=enabled)
    gate.start()
    gate.correct()
    again = gate.go_on()
    why = "corrected files are there and will be read"
    if enabled:
        why = "the corrected files are newer than the release report; the report is made now"
    assert f"nothing is decided: {why}" in again.out
    assert f"send will read the corrected files in {gate.directory}/import_wait" in gate.text()
    assert len(gate.maker.given) == (2 if enabled else 0)
    if enabled:
        assert "the job waits again" in gate.text()
        assert [file.name for file in gate.maker.given[-1].leaving.files] == ["import_wait/fixed.ndjson"]
    gate.waits()
    assert "nothing is decided: job" in gate.go_on().out  # the same once more costs nothing
    assert len(gate.maker.given) == (2 if enabled else 0)
    (gate.directory / "import_wait/notes.json").write_text("{}")
    assert "error[wait-foreign-files]" in gate.go_on().err
    (gate.directory / "import_wait/notes.json").unlink()
    gate.go_on(*(() if enabled else ("--approve",)))  # the report covers it no more
    gate.go_on("--approve") if enabled else None
    assert gate.fhir.total() == 1


@pytest.mark.parametrize("what", ["data", "page"])
@pytest.mark.parametrize("state", ["waiting", "completed"])
def test_job_report_check_is_not_0_after_an_edit_in_place(gate: ReleaseGate, what: str, state: str) -> None:
    gate.start()
    if state == "completed":
        gate.go_on("--approve")
    check = ("job", "report", "config.yaml", gate.job, "--check")
    assert gate.sluice(*check).code == 0
    (data,) = (gate.directory / "import").glob("core*")
    page = files.page(gate.directory, 2 if state == "waiting" else None)
    if what == "data":
        data.write_bytes(data.read_bytes()[:-1] + b" ")
        gate.maker.findings = [STOP]  # as the report says of a file that is not as its step left it
        assert gate.sluice(*check).code == (5 if state == "waiting" else 1)
        return
    page.write_text(page.read_text().replace("</h1>", " edited</h1>", 1))
    asked = len(gate.maker.given)
    assert gate.sluice(*check).code == 0  # made again first
    assert len(gate.maker.given) == asked + 1
    assert "edited</h1>" not in page.read_text()


def test_corrections_that_no_report_covers_are_reported_and_the_job_waits_once_more(gate: ReleaseGate) -> None:
    gate.start()
    gate.correct()
    again = gate.go_on("--approve")
    assert "nothing is decided" in again.out
    assert "without a decision" not in (gate.directory / "job.log").read_text()
    gate.waits()
    given = gate.maker.given[-1]
    assert [file.name for file in given.leaving.files] == ["import_wait/fixed.ndjson"]
    assert [one.name for one in given.corrected] == ["import_wait/fixed.ndjson"]
    gate.go_on("--approve")
    assert gate.fhir.total() == 1
    covers_what_is_sent(gate, 2)


def covers_what_is_sent(gate: ReleaseGate, position: int | None) -> None:
    """Files, hashes and counts of the report are those that ``send`` compared before its first request."""
    with (files.page(gate.directory, position).parent / "files.csv").open() as text:
        listed = [InventoryEntry(row["name"], int(row["stored bytes"]), row["sha256"]) for row in csv.DictReader(text)]
    report = files.read(gate.directory, position)
    read_by_send = [step for step in gate.record().steps if step.output][-1]
    sent = load(gate.directory / f".results/{read_by_send.position}-inventory.ndjson", str(read_by_send.inventory))
    assert sent is not None
    assert Inventory(tuple(sorted(listed, key=lambda one: one.name))).digest == sent.digest
    assert report is not None
    assert (report.files, report.tiles.files) == (sent.digest, len(sent.entries))
    assert report.tiles.bytes == sum(entry.size for entry in sent.entries)


def test_the_report_covers_what_is_sent(gate: ReleaseGate) -> None:
    gate.start()
    gate.go_on("--approve")
    covers_what_is_sent(gate, 2)
    covers_what_is_sent(gate, None)


def test_a_byte_changed_after_the_approval_stops_before_the_first_request(gate: ReleaseGate) -> None:
    gate.start()
    gate.answer(decision="release", by="Anna")
    (changed,) = (gate.directory / "import").glob("batch-0*")
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    again = gate.go_on()
    assert f"changed: import/{changed.name}" in again.out  # a name of the extraction server's own
    assert gate.maker.given[-1].changed == (f"import/{changed.name}",)
    assert gate.fhir.posts() == []
    refused = gate.go_on("--approve", code=1)
    assert "error[edited-in-place]" in refused.err
    assert gate.fhir.posts() == []


def set_label(gate: ReleaseGate, name: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    url = f"{gate.api}/flow_runs/{gate.job}"
    value = change(json.loads(ask_prefect("GET", url)["labels"].get(name) or "{}"))
    ask_prefect("PATCH", f"{url}/labels", {name: json.dumps(value) if value else ""})


def test_a_decision_for_another_report_is_refused(gate: ReleaseGate) -> None:
    gate.start()
    seen = gate.record().seen[2]
    approval = {"approved": True, "by": "Anna", "when": "2026-11-23", "files": seen, "report": "0" * 64}
    set_label(gate, "job.approval.2", lambda _: approval)
    again = gate.go_on()
    assert "the decision was for another release report" in again.out
    gate.waits()
    assert gate.status()["approvals"] == []


def test_another_destination_than_that_of_the_report_is_asked_about_anew(gate: ReleaseGate) -> None:
    gate.start("--set", f"services.send.url={gate.fhir.url.replace('127.0.0.1', 'localhost')}")
    again = gate.go_on("--approve", "--set", f"services.send.url={gate.fhir.url}")
    assert "the destination or the settings" in again.out
    gate.waits()
    gate.go_on("--approve")
    assert gate.fhir.total() == 19


def test_data_released_for_one_destination_are_not_sent_to_another_on_retry(gate: ReleaseGate) -> None:
    there = f"services.send.url={gate.fhir.url.replace('127.0.0.1', 'localhost')}"
    gate.start("--set", there)
    gate.fhir.faults({"action": "status", "status": 503, "path": "/fhir*", "method": "POST", "times": 99})
    gate.go_on("--approve", code=3)
    gate.fhir.faults()
    again = gate.go_on("--set", f"services.send.url={gate.fhir.url}")
    assert "the destination or the settings" in again.out
    gate.waits()
    assert gate.status()["approvals"] == []
    gate.go_on("--approve")
    assert gate.fhir.total() == 19


def test_where_the_data_stay_inside_a_release_needs_no_reason(gate: ReleaseGate) -> None:
    gate.maker.findings = [STOP]
    gate.start("--set", "pipeline.enabled_steps=[local_import, wait]")
    assert "decision sends no data" in gate.form()
    assert "decision sends no data" in gate.text()
    assert gate.maker.given[0].destination is None
    gate.go_on("--approve")
    assert gate.status()["approvals"][0]["overridden"] == []


STRAIGHT = ("--set", "pipeline.enabled_steps=[local_import, send]")


def test_without_a_wait_a_stop_is_told_and_kept(gate: ReleaseGate) -> None:
    gate.maker.findings = [STOP]
    started = gate.start(*STRAIGHT)
    assert gate.fhir.total() == 19
    assert "release report: Do not release. 1 reason to stop." in started.out  # before they leave
    assert "release report: Sent without a decision, despite 1 reason to stop.\n" in started.out
    assert gate.artifacts()["**The release report"].startswith("## Sent without a decision, despite 1 reason to stop\n")
    assert (files.read(gate.directory, 2) or reports.clean(sent="decided")).sent is None
    assert "mothersMaidenName" in (gate.directory / "job.log").read_text()
    assert gate.record().shown[2].stops == (STOP.key,)
    covers_what_is_sent(gate, 2)
    assert [given.step for given in gate.maker.given] == [2, None]


@pytest.mark.parametrize("missing", [False, True])
def test_without_a_wait_on_stop_fail_ends_the_job_before_the_first_request(gate: ReleaseGate, missing: bool) -> None:
    gate.configure(on_stop="fail")
    gate.maker.findings = [STOP]
    gate.maker.fails = RuntimeError("x") if missing else None
    ran = gate.start(*STRAIGHT, code=5)
    assert f"error[{'report-missing' if missing else 'report-stops'}]" in ran.err
    assert gate.fhir.posts() == []
    status = gate.status()
    assert (status["state"], status["error"]["reference"]) == (
        "failed", "report-missing" if missing else "report-stops",
    )  # fmt: skip
    gate.go_on(code=5)
    assert gate.fhir.posts() == []
    assert len(gate.maker.given) == (2 if missing else 1)  # one that is there is not made again
    gate.maker.findings, gate.maker.fails = [], None
    (gate.directory / ".results/1-local_import.json").unlink()
    gate.go_on("--set", "report.k=6")
    assert gate.fhir.total() == 19


def test_a_second_release_of_a_query_is_compared_with_the_first_and_has_its_host(gate: ReleaseGate) -> None:
    first = gate.start(str(DEMO_CRTDL)).job
    gate.go_on("--approve")
    gate.start(str(DEMO_CRTDL))
    at_first, at_last = gate.maker.given[0], gate.maker.given[-1]
    assert (at_first.last, at_first.last_copy) == (None, None)
    assert [one is not None and one.first_time for one in (at_first.destination, at_last.destination)] == [True, False]
    compared = [(one.job, one.step, one.recipient) for one in (at_last.last, at_last.last_copy) if one is not None]
    assert compared == [(first, None, False), (first, None, True)]
    gate.start()
    assert gate.maker.given[-1].last is None  # without a query


def test_a_report_that_fails_at_the_end_fails_no_job(gate: ReleaseGate) -> None:
    gate.start()
    gate.maker.fails = RuntimeError("x")
    ran = gate.go_on("--approve")
    assert "release report: missing" in ran.err
    assert gate.status()["state"] == "completed"
    assert gate.status()["report"] == str(gate.directory / "report/step-2/release-report.html")


def test_without_reports_the_gate_asks_as_before(gate: ReleaseGate) -> None:
    gate.configure(enabled=False)
    gate.maker.findings = [STOP]
    gate.start()
    gate.go_on("--approve")
    assert gate.fhir.total() == 19
    assert gate.maker.given == []
    assert not (gate.directory / "report").exists()


@pytest.mark.parametrize("decision", ["--approve", "--reject"])
def test_the_copy_for_people_without_a_shell_is_named_and_says_who_decided(gate: ReleaseGate, decision: str) -> None:
    (gate.project / "site").mkdir()
    gate.configure(copy_to="site", link="https://intranet.example/reports/")
    gate.start()
    (copy,) = (gate.project / "site").iterdir()
    address = f"https://intranet.example/reports/{copy.name}"
    for place in (gate.form(), gate.text(), gate.artifacts()["**The release report"]):
        assert address in place
    assert copy.stat().st_mode & 0o777 == 0o640
    gate.go_on(decision, "--by", "Anna", "--comment", "looked at it")
    text = copy.read_text()
    assert "Anna" in text
    assert "looked at it" in text
    assert copy.stat().st_mode & 0o777 == 0o640
