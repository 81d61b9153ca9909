"""The release report at the gate: what leaves, and on whose word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.gate import release
from flows.job.record import JobRecord
from flows.prefect.api import PrefectApi
from flows.prefect.artifacts import artifacts_of
from tasks.release_report import files
from tasks.release_report.document import ReleaseReport
from tasks.shared.files.inventory import take_inventory
from tasks.shared.files.ndjson import lines
from tasks.shared.stop import Stop
from tests.conftest import Commands, Ran, address_of, ask_prefect, wait_until
from tests.peers.project import Fhir, GatedJob

PATIENT = '{"resourceType":"Patient","id":"only-this"}\n'
WHY = "the names are made up"
STRAIGHT = ("--set", "pipeline.enabled_steps=[local_import, send]")
IDENTIFYING = ("name", "telecom", "address", "identifier", "birthDate", "text")

pytestmark = pytest.mark.slow


class ReleaseGate(GatedJob):
    """With release reports."""

    def configure(self, **report: object) -> None:
        self.config.write_text(self.config.read_text().partition("report: {")[0] + f"report: {json.dumps(report)}\n")

    def clean(self) -> None:
        """Remove what identifies from the input."""
        for path in (self.project / "data").iterdir():
            cleaned = [without_names(json.loads(line)) for line in path.read_text().splitlines()]
            path.write_text("".join(json.dumps(line) + "\n" for line in cleaned))

    def release(self, comment: str = WHY) -> Ran:
        return self.go_on("--approve", "--by", "Anna", "--comment", comment)

    def report(self, *words: str) -> Ran:
        return self.sluice("job", "report", "config.yaml", self.job, *words)

    @property
    def page(self) -> Path:
        return files.page_of(self.directory)

    def document(self) -> ReleaseReport:
        found = files.read(self.directory)
        assert found is not None
        return found

    def record(self) -> JobRecord:
        with PrefectApi(address_of(self.api)) as api:
            return JobRecord.of(api.read_run(self.job) or {})

    def artifact(self) -> str:
        """Return title and text of the report in the Prefect UI."""
        with PrefectApi(address_of(self.api)) as api:
            [one] = [one for one in artifacts_of(api, self.job) if "release report" in str(one["description"])]
        return f"{one['description']}\n{one['data']}"

    def waits(self) -> None:
        status = self.status()
        assert (status["state"], status["decisions"]) == ("waiting", [])
        assert self.fhir.posts() == []

    def covers(self, folder: str) -> None:
        """Files, hashes and counts of the report are those in this directory, which ``send`` reads."""
        there = take_inventory(self.directory, [self.directory / folder], stop=Stop())
        found = self.document()
        assert found.files == there.digest
        assert (found.tiles.files, found.tiles.bytes) == (len(there.entries), sum(one.size for one in there.entries))
        number = sum(1 for path in (self.directory / folder).iterdir() for _ in lines(path, 1 << 20))
        assert found.sections[0].facts["lines"] == number


def without_names(node: Any) -> Any:
    if isinstance(node, list):
        return [without_names(item) for item in node]
    if isinstance(node, dict):
        return {key: without_names(value) for key, value in node.items() if key not in IDENTIFYING}
    return node


@pytest.fixture
def gate(sluice: Commands, project: Path, fhir: Fhir, prefect_api: str) -> ReleaseGate:
    gate = ReleaseGate(sluice, project, fhir, prefect_api)
    gate.configure()
    return gate


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let every report fail, until it is undone."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("Meier")

    monkeypatch.setattr(release, "make_report", fail)
    return monkeypatch


def test_every_view_shows_report_and_decision(gate: ReleaseGate) -> None:
    gate.configure(on_stop="fail")  # which is for jobs that ask nobody
    started = gate.start()
    stops = gate.document().number_of("stop")
    assert gate.page.stat().st_mode & 0o777 == 0o600
    assert gate.status()["report"]["page"] == str(gate.page)
    assert gate.status()["report"]["stops"] == stops > 0
    for place in (gate.text(), gate.artifact()):
        assert str(gate.page) in place
    assert f"`{gate.page.relative_to(gate.directory)}`" in gate.form()
    for place in (started.out, gate.form(), gate.artifact()):
        assert "Patient.name.family" in place
    body = {"flow_runs": {"id": {"any_": [gate.job]}}}
    # Prefect writes the runs of tasks from its events, some time after them.
    wait_until(
        lambda: release.NAME in {run["name"] for run in ask_prefect("POST", f"{gate.api}/task_runs/filter", body)}, 60
    )
    gate.covers("import")
    made = gate.document().made
    gate.release()
    assert gate.fhir.total() == 19
    found = gate.document()
    assert (found.made, found.outcome, found.step) == (made, "sent", None)  # nothing was read again at the end
    assert [(one.by, one.comment) for one in found.decisions] == [("Anna", WHY)]
    for place in (gate.text(), gate.page.read_text(), gate.artifact()):
        assert "Anna" in place
        assert WHY in place
    assert f"Released despite {stops} reasons to stop" in gate.artifact()
    gate.covers("import")


def test_a_decision_about_other_files_is_not_in_the_last_report(gate: ReleaseGate) -> None:
    gate.config.write_text(gate.config.read_text().replace("wait, send", "wait, send, wait"))
    gate.start()
    gate.release()
    Path(gate.status()["waiting"]["directory"], "fixed.ndjson").write_text(PATIENT)
    gate.go_on("--approve", "--by", "Bo", code=5)
    gate.go_on("--approve", "--by", "Bo")
    assert [one["by"] for one in gate.status()["decisions"]] == ["Anna", "Bo"]
    assert [one.by for one in gate.document().decisions] == ["Anna"]


def test_a_byte_changed_after_the_approval_stops_send_before_its_first_request(gate: ReleaseGate) -> None:
    gate.start()
    gate.resume({"decision": "release", "by": "Anna", "comment": WHY})
    (data,) = (gate.directory / "import").glob("core*")
    data.write_bytes(data.read_bytes()[:-1] + b" ")
    gate.go_on()
    gate.waits()
    assert {one.code for one in gate.document().findings} >= {"file-changed"}


@pytest.mark.parametrize("where", ["command", "ui"])
@pytest.mark.parametrize("failed", [False, True], ids=["stops", "failed"])
def test_with_stops_or_without_a_report_an_approval_needs_a_comment(
    gate: ReleaseGate, where: str, failed: bool, request: pytest.FixtureRequest
) -> None:
    if failed:
        request.getfixturevalue("failing")
    started = gate.start()
    for place in (started.out, gate.form()):
        assert ("could not be made" if failed else "Patient.name.family") in place
        assert "Meier" not in place
    assert "An approval needs a comment" in gate.form()
    for comment, code in ((" ", 5), (WHY, 0)):
        if where == "ui":
            gate.resume({"decision": "release", "by": "Anna", "comment": comment})
            gate.go_on()
        else:
            gate.go_on("--approve", "--by", "Anna", "--comment", comment, code=code)
        if code:
            gate.waits()
            assert "the approval has no comment" in gate.status()["waiting"]["reason"]
    assert gate.fhir.total() == 19
    (decision,) = gate.status()["decisions"]
    assert (decision["comment"], decision["where"]) == (WHY, where)


def test_a_rejection_is_in_the_report(gate: ReleaseGate) -> None:
    gate.start()
    gate.go_on("--reject", "--by", "Bo")
    assert gate.status()["state"] == "cancelled"
    assert gate.fhir.posts() == []
    assert [(one.by, one.approved) for one in gate.document().decisions] == [("Bo", False)]
    assert "Bo" in gate.artifact()
    assert "Rejected" in gate.artifact()


@pytest.mark.parametrize("how", ["job report", "resume"])
def test_a_report_that_failed_is_made_again_when_the_job_runs_again(
    gate: ReleaseGate, failing: pytest.MonkeyPatch, how: str
) -> None:
    gate.clean()
    (gate.project / "data/only-here.json").write_text("{}")
    gate.start()
    gate.waits()
    assert "could not be made" in gate.artifact()
    for place in (gate.text(), gate.form()):  # what the steps found is shown all the same
        assert "warnings of the steps: 1" in place
        assert "only-here.json" in place
    failing.undo()
    if how == "job report":
        assert gate.report("--check").out.startswith(str(gate.page))
    else:
        ask_prefect("POST", f"{gate.run}/set_state", {"state": {"type": "RUNNING"}, "force": True})
        gate.go_on()
    gate.waits()
    assert gate.page.is_file()
    assert "could not be made" not in gate.text() + gate.form()
    gate.release("")
    assert gate.fhir.total() == 19


def test_a_report_that_fails_at_the_end_fails_no_job_and_is_made_on_demand(
    gate: ReleaseGate, failing: pytest.MonkeyPatch
) -> None:
    ran = gate.start(*STRAIGHT)
    assert "release report: could not be made" in ran.err
    assert (gate.status()["state"], gate.status()["report"]) == ("completed", None)
    failing.undo()
    posts = len(gate.fhir.posts())
    assert gate.report().code == 0
    assert gate.document().outcome == "sent-undecided"
    assert len(gate.fhir.posts()) == posts


def test_a_job_that_sends_nothing_and_asks_nobody_gets_a_report_on_demand(gate: ReleaseGate) -> None:
    gate.config.write_text(gate.config.read_text().replace("local_import, wait, send", "local_import"))
    gate.start()
    assert gate.status()["report"] is None
    gate.go_on()
    assert not gate.page.exists()
    assert gate.report().code == 0
    made = gate.page.stat().st_mtime_ns
    assert gate.report().code == 0
    assert gate.page.stat().st_mtime_ns == made
    assert gate.status()["report"]["page"] == str(gate.page)


def test_corrections_are_reported_before_they_can_be_approved(gate: ReleaseGate) -> None:
    gate.start()
    (gate.directory / "import_wait/fixed.ndjson").write_text(PATIENT)
    gate.go_on("--approve", code=5)
    gate.waits()
    gate.covers("import_wait")
    assert "corrected-uncompared" in gate.document().sections[5].sentences
    gate.release("")
    assert gate.fhir.total() == 1
    gate.covers("import_wait")


def test_without_a_wait_a_stop_is_told_and_kept(gate: ReleaseGate) -> None:
    started = gate.start(*STRAIGHT)
    assert gate.fhir.total() == 19
    assert "Do not release" in started.out  # before they leave
    assert "Sent without a decision, despite" in started.out
    assert "Sent without a decision, despite" in gate.artifact()
    assert "Patient.name.family" in (gate.directory / "job.log").read_text()
    assert gate.record().shown[2].stops > 0
    gate.covers("import")


@pytest.mark.parametrize("missing", [False, True])
def test_without_a_wait_on_stop_fail_ends_the_job_before_the_first_request(
    gate: ReleaseGate, missing: bool, request: pytest.FixtureRequest
) -> None:
    gate.configure(on_stop="fail")
    if missing:
        request.getfixturevalue("failing")
        gate.clean()
    reference = "report-missing" if missing else "report-stops"
    assert f"error[{reference}]" in gate.start(*STRAIGHT, code=5).err
    status = gate.status()
    assert (status["state"], status["error"]["reference"]) == ("failed", reference)
    gate.go_on(code=5)
    assert gate.fhir.posts() == []
    if missing:
        request.getfixturevalue("failing").undo()
        gate.go_on()
        assert gate.fhir.total() == 19


def test_without_reports_the_gate_asks_all_the_same(gate: ReleaseGate) -> None:
    gate.configure(enabled=False)
    gate.start()
    gate.go_on("--approve")
    assert gate.fhir.total() == 19
    assert not (gate.directory / "report").exists()
