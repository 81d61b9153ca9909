"""Events of a job at each transition, with the record in memory (docs/observability.md)."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from pydantic import BaseModel

from flows.engine.api import Label, PrefectApi
from flows.gate.wait import CurrentWait
from flows.job.directory import JobDirectory
from flows.job.inputs import JobInputs
from flows.job.job import RunningJob, follow
from flows.job.outcome import Ended, end_without_waiting, show, stopped
from flows.job.record import Run
from flows.job.running.lock import LOCK, JobBusyError, JobLock
from flows.job.steps import Sources, finish_step, pass_gate, record_failure
from flows.job.writer import RecordWriter
from flows.reports import summary
from flows.reports.events import Export, Gate, JobEvent, StepEvent, Wait
from flows.reports.journal import Journal
from flows.reports.terminal import Presenter
from tasks import declared
from tasks.shared.errors import GateError, NetworkError, ReconciliationError, Stopped, StorageError
from tasks.shared.events import Event
from tasks.shared.report import Approval, StepReport, Waiting
from tasks.shared.step import StepContext
from tests.peers.events import read_events
from tests.peers.prefect import prefect_in_memory

JOB = "368f91e2-dd1f-4d71-8c99-58332d55a824"
STEPS = ("local_import", "validation", "wait", "send")
COMMENT = "Meier has two ids"
RUN = Run(number=1, created="2026-01-01T00:00:00.000Z", began="2026-01-01T00:00:00.000Z")


class Api:
    """The part of Prefect's API that the end of a run uses: the run is running, and has no page yet."""

    def read_run(self, _job_id: str) -> dict[str, Any]:
        return {"state_type": "RUNNING"}

    def read_all(self, _path: str, _body: dict[str, Any]) -> list[Any]:
        return []

    def created(self, _path: str, _body: dict[str, Any]) -> str:
        return str(uuid4())

    def request(self, method: str, _path: str, _body: object = None) -> dict[str, Any] | None:
        return None if method == "GET" else {}


class Labels(RecordWriter):
    """The record, in memory; ``away`` is the Prefect API that does not answer."""

    def __init__(self) -> None:
        super().__init__(cast("PrefectApi", Api()), JOB)
        self.away = False
        self.written: dict[str, Any] = {}
        self._run = {"id": JOB, "state_type": "RUNNING", "labels": {"job.steps": ",".join(STEPS)}}

    def set(self, **labels: Label | BaseModel | None) -> bool:
        if self.away:
            raise NetworkError("prefect-unreachable", "the Prefect API does not answer")
        self.written |= labels
        return super().set(**labels)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[RunningJob]:
    config = tmp_path / "config.yaml"
    config.write_text(
        "services: {local_import: {dir: data}, validation: {url: 'http://v.test'}, "
        "send: {send_as: direct_resource_load, url: 'http://f.test'}}\n"
        f"pipeline: {{enabled_steps: [{', '.join(STEPS)}]}}\njobs_dir: {tmp_path}/jobs\nreport: {{enabled: false}}\n"
    )
    inputs = JobInputs(config=str(config))
    directory = JobDirectory.of(tmp_path / "jobs", JOB)
    directory.create()
    with Journal.opened(directory.path, JOB, STEPS, RUN) as journal:
        yield RunningJob(
            id=JOB, inputs=inputs, loaded=inputs.load(), directory=directory, writer=Labels(), presenter=Presenter(),
            journal=journal, steps={n: StepReport(position=n, name=name) for n, name in enumerate(STEPS, start=1)},
        )  # fmt: skip


def current_wait(job: RunningJob) -> CurrentWait:
    return CurrentWait(job, 3, Sources(STEPS, job.config))


def context(job: RunningJob, position: int) -> StepContext:
    return job.context(position, declared(job.step_names[position - 1]), None)


def later_events(job: RunningJob) -> list[Event]:
    """Return the events of the job, without those of its beginning."""
    return [entry.event for entry in read_events(job.directory.path)][2:]


def document(job: RunningJob) -> summary.Summary:
    return summary.Summary.model_validate_json((job.directory.path / "summary.json").read_bytes())


@pytest.mark.parametrize("findings", [0, 2])
def test_the_gate_tells_what_it_did_and_closed_it_ends_the_job(job: RunningJob, findings: int) -> None:
    counted = {"findings": findings, "resources_with_findings": 1 if findings else 0}
    job.steps[2] = job.steps[2].model_copy(update={"details": counted})
    pass_gate(job, 2, GateError("validation-findings", "x") if findings else None)
    if findings:
        end = JobEvent(state="failed", error="validation-findings")
        assert later_events(job) == [Gate(state="closed", findings=5, resources=5), end]
        assert document(job).state == "failed"
    else:
        assert later_events(job) == [Gate(state="open", findings=0, resources=0)]


def test_a_no_at_the_wait_cancels_the_job_and_the_comment_stays_in_the_record(job: RunningJob) -> None:
    job.writer.approve(3, Approval(approved=False, comment=COMMENT, by="anna", when="now"))
    with pytest.raises(Ended) as end:
        current_wait(job).decide()
    assert end.value.state.is_cancelled()
    assert later_events(job) == [
        Wait(state="decided", approved=False),
        StepEvent(state="stopped", error="rejected"),
        JobEvent(state="cancelled", error="rejected"),
    ]
    assert document(job).state == "cancelled"
    for name in ("events.ndjson", "summary.json"):
        assert COMMENT not in (job.directory.path / name).read_text()


def a_wait(job: RunningJob) -> Waiting:
    directory = job.directory.path
    return Waiting(
        position=3, step="wait", directory=str(directory / "import_wait"), looked_at=str(directory / "import"), since=""
    )


def test_the_wait_directory_appears_when_the_record_says_that_the_job_waits(job: RunningJob) -> None:
    waiting, labels = a_wait(job), cast("Labels", job.writer)
    labels.away = True
    with pytest.raises(NetworkError):
        current_wait(job).record(waiting, "form-key")
    assert not Path(waiting.directory).exists()
    labels.away = False
    current_wait(job).record(waiting, "form-key")
    assert Path(waiting.directory).stat().st_mode & 0o777 == 0o700
    assert later_events(job)[-2:] == [Wait(state="asked"), JobEvent(state="waiting")]


def test_a_wait_directory_that_cannot_be_made_is_the_steps_error(job: RunningJob) -> None:
    waiting = a_wait(job)
    Path(waiting.directory).write_bytes(b"")
    with pytest.raises(StorageError) as caught:
        current_wait(job).record(waiting, "form-key")
    assert caught.value.context is not None
    assert "import_wait" in caught.value.context
    assert Wait(state="asked") not in later_events(job)


def test_a_decision_is_not_told_again_by_a_wait_that_is_complete(job: RunningJob) -> None:
    job.writer.approve(3, Approval(approved=True))
    job.steps[3] = StepReport(position=3, name="wait", state="completed")
    current_wait(job).decide()
    assert later_events(job) == []


@pytest.mark.parametrize(("reason", "state"), [("cancel", "cancelled"), ("SIGTERM", "stopped")])
def test_a_stop_says_why(job: RunningJob, reason: str, state: Any) -> None:
    stopped(job, 4, Stopped(reason))
    assert later_events(job) == [StepEvent(state="stopped"), JobEvent(state=state, reason=reason)]
    assert document(job).state == state
    assert [entry.head.position for entry in read_events(job.directory.path)][2:] == [4, 4]


@pytest.mark.parametrize(("reason", "state"), [("cancel", "cancelled"), ("SIGINT", "stopped")])
def test_a_process_that_does_not_wait_for_its_threads_tells_its_end(job: RunningJob, reason: str, state: Any) -> None:
    end_without_waiting(job, reason)
    assert later_events(job) == [JobEvent(state=state, reason=reason)]
    assert document(job).state == state


def test_a_failure_is_told_also_when_the_record_cannot_be_written(job: RunningJob) -> None:
    cast("Labels", job.writer).away = True
    with pytest.raises(NetworkError):
        record_failure(job, 4, ReconciliationError("lines-differ", "send read 6 lines, the step before wrote 7"))
    assert later_events(job) == [
        StepEvent(state="failed", error="lines-differ"),
        JobEvent(state="failed", error="lines-differ"),
    ]
    error = document(job).error
    assert error is not None
    assert (error.reference, error.step) == ("lines-differ", "send")
    assert document(job).steps[3].state == "failed"


def test_a_failure_before_the_first_step_belongs_to_none(job: RunningJob) -> None:
    record_failure(job, None, NetworkError("connect-failed", "x"))
    assert later_events(job) == [JobEvent(state="failed", error="connect-failed")]
    error = document(job).error
    assert error is not None
    assert error.step is None
    assert error.transient


def test_a_step_is_reported_complete_before_it_is_recorded_as_complete(job: RunningJob) -> None:
    cast("Labels", job.writer).away = True
    with pytest.raises(NetworkError):
        finish_step(job, context(job, 4), StepReport(files=2, resources_out=7), expected=7)
    assert [type(event) for event in later_events(job)] == [StepEvent, Export]


def test_a_finished_step_costs_three_requests_to_prefect(tmp_path: Path) -> None:
    """Its label, its table with all details, the page of the job; what was there before is asked for once a run."""
    config = tmp_path / "config.yaml"
    config.write_text(f"pipeline: {{enabled_steps: [local_import]}}\njobs_dir: {tmp_path}/jobs\n")
    inputs = JobInputs(config=str(config), input=str(tmp_path))
    with prefect_in_memory() as prefect:
        prefect.run = {"id": JOB, "name": "n", "state_type": "RUNNING", "labels": {}}
        with RunningJob.opened(JOB, inputs, prefect.api, Presenter()) as running:
            running.prepare()
            show(running, "running")
            prefect.asked.clear()
            details = {"groups": [{"group": "Labor", "rows": 3}], "unrouted": {"Observation": 2}}
            finish_step(
                running,
                context(running, 1),
                StepReport(files=2, lines_out=7, output="import", details=details),
                expected=None,
            )
            show(running, "running")
    assert prefect.asked == [
        ("PATCH", f"/flow_runs/{JOB}/labels"), ("PATCH", f"/artifacts/{prefect.page['id']}"),
    ]  # fmt: skip


def test_a_stop_leaves_a_step_complete_that_was(job: RunningJob) -> None:
    job.steps[4] = job.steps[4].model_copy(update={"state": "completed"})
    stopped(job, 4, Stopped("SIGTERM"))
    assert later_events(job) == [JobEvent(state="stopped", reason="SIGTERM")]
    assert document(job).steps[3].state == "completed"


@pytest.mark.parametrize(("meanwhile", "goes_on"), [("RUNNING", True), ("PAUSED", False), ("COMPLETED", False)])
def test_a_worker_run_waits_for_the_process_that_releases_the_job_unless_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str, goes_on: bool
) -> None:
    monkeypatch.setattr("flows.job.running.lock.PATIENCE", 0.1)
    other = (tmp_path / LOCK).open("wb")
    fcntl.flock(other, fcntl.LOCK_EX)
    threading.Timer(0.3, other.close).start()
    lock = JobLock(tmp_path)
    with prefect_in_memory() as prefect:
        prefect.run = {"id": JOB, "name": "n", "state_type": meanwhile, "labels": {}}
        with nullcontext() if goes_on else pytest.raises(JobBusyError):
            follow(lock, prefect.api, JOB)
    assert (lock.path in JobLock.held) is goes_on
    lock.release()


def test_one_that_goes_on_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.job.running.lock.PATIENCE", 0.1)
    monkeypatch.setattr("flows.job.job.ENDS_WITHIN", 0.1)
    with (tmp_path / LOCK).open("wb") as other, prefect_in_memory() as prefect:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(JobBusyError):
            follow(JobLock(tmp_path), prefect.api, JOB)
    assert not prefect.asked
