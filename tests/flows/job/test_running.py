"""A running job: what each transition writes into the record, and how a run ends."""

from __future__ import annotations

import fcntl
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.exceptions import Pause, TerminationSignal

from flows.job.ends import end, ending, stop_recorded
from flows.job.inputs import JobInputs
from flows.job.lock import LOCK
from flows.job.record import RecordedHandle, RecordWriter
from flows.job.running import RunningJob
from flows.job.state import JobState
from flows.pipeline import prepare
from flows.prefect.address import ApiAddress
from flows.prefect.api import PrefectApi
from flows.reports.terminal import Presenter
from tasks import declared
from tasks.shared.errors import GateError, NetworkError, ReconciliationError, SluiceError, Stopped
from tasks.shared.report import StepReport
from tasks.shared.step import Handle
from tasks.shared.stop import Stop
from tests.peers.prefect import FakePrefect, prefect_in_memory

JOB = "368f91e2-dd1f-4d71-8c99-58332d55a824"
STEPS = ("local_import", "validation", "send")


@pytest.fixture
def prefect() -> Iterator[FakePrefect]:
    with prefect_in_memory() as known:
        known.run = {"id": JOB, "name": "n", "state_type": "RUNNING", "labels": {}}
        yield known


@pytest.fixture
def inputs(tmp_path: Path) -> JobInputs:
    config = tmp_path / "config.yaml"
    config.write_text(
        "services: {local_import: {dir: data}, validation: {url: 'http://v.test'}, "
        "send: {send_as: direct_resource_load, url: 'http://f.test'}}\n"
        f"pipeline: {{enabled_steps: [{', '.join(STEPS)}]}}\njobs_dir: {tmp_path}/jobs\nreport: {{enabled: false}}\n"
        "retry: {max_attempts: 1}\n"
    )
    return JobInputs(config=str(config))


@pytest.fixture
def job(inputs: JobInputs, prefect: FakePrefect) -> Iterator[RunningJob]:
    with RunningJob.opened(JOB, inputs, prefect.api, Presenter(), Stop()) as running:
        running.prepare()
        yield running


def mirrored(job: RunningJob) -> dict[str, Any]:
    path = job.directory.path / "job.json"
    assert path.stat().st_mode & 0o777 == 0o600
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def begin(job: RunningJob, position: int) -> None:
    job.position = position
    with job.step_running(job.context(declared(job.step_names[position - 1]), None)):
        pass


def test_every_write_replaces_job_json_with_the_status(job: RunningJob) -> None:
    begin(job, 1)
    found = mirrored(job)
    assert (found["id"], found["state"], found["step"]) == (JOB, "running", "local_import")
    assert [step["state"] for step in found["steps"]] == ["running", "pending", "pending"]
    done = StepReport(files=2, lines_out=7, output="import", details={"groups": 3})
    job.step_complete(job.context(declared("local_import"), None), done)
    assert mirrored(job)["steps"][0]["details"] == {"groups": 3}
    source = job.written(1, tables=False)
    assert (source.path, source.lines) == (job.directory.path / "import", 7)


def test_a_finished_step_costs_two_requests_to_prefect(job: RunningJob, prefect: FakePrefect) -> None:
    """Its label and the page of the job."""
    begin(job, 1)
    job.show()
    prefect.asked.clear()
    job.step_complete(job.context(declared("local_import"), None), StepReport(output="import"))
    job.show()
    assert prefect.asked == [
        ("PATCH", f"/flow_runs/{JOB}/labels"), ("PATCH", f"/artifacts/{prefect.page['id']}"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("raised", "position", "kind", "message", "step", "error"),
    [
        (NetworkError("connect-failed", "x"), 0, "FAILED", "error[connect-failed]: x", None, "connect-failed"),
        (ReconciliationError("lines-differ", "x"), 3, "FAILED", "send: error[lines-differ]: x", "failed",
         "lines-differ"),
        (GateError("validation-findings", "x"), 2, "FAILED", "validation: error[validation-findings]: x", "failed",
         "validation-findings"),
        (Stopped("SIGTERM"), 3, "CRASHED", "stopped by SIGTERM", "stopped", None),
        (Stopped("suspend"), 3, "CRASHED", "stopped by suspend", "stopped", None),
        (Stopped("cancel"), 3, "CANCELLED", "cancelled in the Prefect UI", "stopped", None),
        (Stopped("SIGTERM"), 2, "CANCELLED", "cancelled in the Prefect UI", "stopped", None),
        (KeyError("a defect"), 3, "FAILED", "send: error[internal]", "failed", "internal"),
    ],
)  # fmt: skip
def test_every_end_has_its_state_message_and_record(
    job: RunningJob, prefect: FakePrefect, raised: Exception, position: int, kind: str,
    message: str, step: str | None, error: str | None,
) -> None:  # fmt: skip
    if position:
        begin(job, position)
    assert prefect.run is not None
    if str(raised) == "suspend":
        prefect.run |= {"state_type": "PAUSED"}
    elif kind == "CANCELLED":  # a worker passes a cancel on as a signal
        prefect.run |= {"state_type": "CANCELLING"}
    job.stop.request(str(raised))
    with pytest.raises(Pause) as left, ending(job):
        raise raised
    state = left.value.state
    assert (state.type.value, (state.message or "").startswith(message)) == (kind, True), state.message
    assert prefect.states == [state.name]
    record = job.record()
    assert (record.error.reference if record.error else None) == error
    assert record.state.value == mirrored(job)["state"]
    assert record.stopped_by == (str(raised) if kind == "CRASHED" else None)
    if position:
        assert record.steps[position - 1].state == step


def test_a_suspend_that_was_taken_back_leaves_the_run_to_the_next_process(
    job: RunningJob, prefect: FakePrefect
) -> None:
    begin(job, 3)
    with pytest.raises(Pause), ending(job):
        raise Stopped("suspend")
    assert prefect.states == []
    assert job.steps[3].state == "running"


def test_a_gate_leaves_its_step_complete(job: RunningJob) -> None:
    begin(job, 2)
    job.step_complete(job.context(declared("validation"), None), StepReport(findings=3))
    with pytest.raises(Pause) as left, ending(job):
        raise GateError("validation-findings", "x")
    assert job.steps[2].state == "completed"
    assert job.record().error is not None
    assert (job.record().current_step, left.value.state.name) == ("validation", "Failed")


@pytest.mark.parametrize(
    ("state", "name", "recorded"),
    [("PENDING", "Pending", ["Stopped"]), ("RUNNING", "Running", ["Stopped"]), ("CRASHED", "Crashed", ["Stopped"]),
     ("CRASHED", "Stopped", []), ("COMPLETED", "Completed", []), ("PAUSED", "Paused", [])],
)  # fmt: skip
@pytest.mark.parametrize("caught", [SystemExit(143), TerminationSignal(15)], ids=["ours", "of Prefect"])
def test_a_signal_around_the_flow_is_recorded_unless_the_run_has_ended(
    prefect: FakePrefect, caught: BaseException, state: str, name: str, recorded: list[str]
) -> None:
    prefect.run = {"id": JOB, "state_type": state, "state_name": name}
    with pytest.raises(SystemExit) as left, stop_recorded(prefect.api, JOB):
        raise caught
    assert (left.value.code, prefect.states) == (143, recorded)


def test_a_signal_keeps_its_exit_code_without_prefect() -> None:
    api = PrefectApi(ApiAddress("http://127.0.0.1:9"), patience=0)
    with api, pytest.raises(SystemExit) as left, stop_recorded(api, JOB):
        raise SystemExit(130)
    assert left.value.code == 130


def test_an_end_that_cannot_be_recorded_is_logged_and_leaves_the_flow(
    job: RunningJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_changes: object) -> None:
        raise NetworkError("prefect-unreachable", "the Prefect API does not answer")

    monkeypatch.setattr(job.writer, "write", away)
    with pytest.raises(Pause) as left:
        end(job, JobState.COMPLETED, "all steps are complete")
    assert "the end of the job is not recorded" in (job.directory.path / "job.log").read_text()
    assert left.value.state.is_completed()


def test_a_reset_is_one_write_and_is_carried_out_when_the_flow_begins(
    job: RunningJob, prefect: FakePrefect, tmp_path: Path
) -> None:
    assert prefect.run is not None
    labels = prefect.run["labels"] | {
        "job.step.1": StepReport(position=1, name="local_import", state="completed").label(),
        "job.step.2": StepReport(position=2, name="validation", state="completed").label(),
        "job.error": "x", "job.reset": 2,
    }  # fmt: skip
    (job.directory.path / "validation").mkdir()
    prefect.run["labels"] = labels
    with RunningJob.opened(JOB, job.inputs, prefect.api, Presenter(), Stop()) as again:
        record = again.record()
    assert [step.state for step in record.steps] == ["completed", "pending", "pending"]
    assert record.reset is None
    assert not (job.directory.path / "validation").exists()


def test_an_extraction_handle_is_in_the_record(prefect: FakePrefect) -> None:
    store = RecordedHandle(RecordWriter(prefect.api, JOB))
    store.save(Handle("https://h.example/fhir/__status/x", "x"))
    assert prefect.run is not None
    prefect.run["labels"] = {"job.extraction.status_url": "https://h.example/x", "job.extraction.job_id": "x"}
    assert store.load() == Handle("https://h.example/x", "x")
    prefect.run["labels"] = {"job.extraction.status_url": "", "job.extraction.job_id": ""}
    assert store.load() is None


def test_a_worker_run_that_ended_meanwhile_is_left_alone(job: RunningJob, prefect: FakePrefect) -> None:
    assert prefect.run is not None
    prefect.run |= {"state_type": "COMPLETED", "deployment_id": "d"}
    opened = RunningJob.opened(JOB, job.inputs, prefect.api, Presenter(), Stop())
    with pytest.raises(SluiceError, match="ended while another process"), opened:
        pass


def test_a_worker_run_waits_for_the_process_that_still_ends_its_job(
    inputs: JobInputs, prefect: FakePrefect, tmp_path: Path
) -> None:
    (tmp_path / "jobs" / JOB).mkdir(parents=True)
    with (tmp_path / "jobs" / JOB / LOCK).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        threading.Timer(1.5, fcntl.flock, (other, fcntl.LOCK_UN)).start()
        with RunningJob.opened(JOB, inputs, prefect.api, Presenter(), Stop()):
            pass


def test_a_new_job_of_a_deployment_is_checked_before_its_first_step(inputs: JobInputs, prefect: FakePrefect) -> None:
    assert prefect.run is not None
    prefect.run["deployment_id"] = "d"
    with RunningJob.opened(JOB, inputs, prefect.api, Presenter(), Stop()) as deployed:
        with pytest.raises(SluiceError, match="checks failed"):
            prepare(deployed)
        begin(deployed, 1)
        prepare(deployed)  # it goes on: its steps check themselves
