"""A running job at each transition, with the record in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from flows.job.job import RunningJob
from flows.job.outcome import show, stopped
from flows.job.steps import finish_step, hold_back, record_failure
from flows.job.writer import RecordWriter
from pydantic import BaseModel

from flows.job.directory import JobDirectory
from flows.job.inputs import JobInputs
from flows.prefect.api import Label, PrefectApi
from flows.reports.terminal import Presenter
from tasks import declared
from tasks.shared.errors import GateError, NetworkError, ReconciliationError, Stopped
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tests.peers.prefect import prefect_in_memory

JOB = "368f91e2-dd1f-4d71-8c99-58332d55a824"
STEPS = ("local_import", "validation", "wait", "send")
COMMENT = "Meier has two ids"


class Api:
    """The part of Prefect's API that the end of a run uses: the run is running, and has no page yet."""

    def read_run(self, _job_id: str) -> dict[str, Any]:
        return {"state_type": "RUNNING"}

    def set_labels(self, _job_id: str, _labels: dict[str, Any]) -> bool:
        return True

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
def job(tmp_path: Path) -> RunningJob:
    config = tmp_path / "config.yaml"
    config.write_text(
        "services: {local_import: {dir: data}, validation: {url: 'http://v.test'}, "
        "send: {send_as: direct_resource_load, url: 'http://f.test'}}\n"
        f"pipeline: {{enabled_steps: [{', '.join(STEPS)}]}}\njobs_dir: {tmp_path}/jobs\nreport: {{enabled: false}}\n"
    )
    inputs = JobInputs(config=str(config))
    directory = JobDirectory.of(tmp_path / "jobs", JOB)
    directory.create()
    return RunningJob(
        id=JOB, inputs=inputs, loaded=inputs.load(), directory=directory, writer=Labels(), presenter=Presenter(),
        steps={n: StepReport(position=n, name=name) for n, name in enumerate(STEPS, start=1)},
    )  # fmt: skip


def context(job: RunningJob, position: int) -> StepContext:
    return job.context(position, declared(job.step_names[position - 1]), None)


def written(job: RunningJob) -> dict[str, Any]:
    return cast("Labels", job.writer).written


def test_a_closed_gate_ends_the_job_with_its_error(job: RunningJob) -> None:
    hold_back(job, 2, GateError("validation-findings", "x"))
    assert job.ended
    assert (written(job)["error"].reference, written(job)["error"].exit_code) == ("validation-findings", 5)


@pytest.mark.parametrize(("reason", "state", "by"), [("cancel", "CANCELLED", None), ("SIGTERM", "CRASHED", "SIGTERM")])
def test_a_stop_says_why(job: RunningJob, reason: str, state: str, by: str | None) -> None:
    assert stopped(job, 4, Stopped(reason)).type == state
    assert (job.steps[4].state, written(job)["stopped_by"]) == ("stopped", by)


def test_a_failure_is_announced_also_when_the_record_cannot_be_written(job: RunningJob) -> None:
    cast("Labels", job.writer).away = True
    with pytest.raises(NetworkError):
        record_failure(job, 4, ReconciliationError("lines-differ", "send read 6 lines, the step before wrote 7"))
    assert job.ended
    assert job.steps[4].state == "failed"


def test_a_failure_before_the_first_step_belongs_to_none(job: RunningJob) -> None:
    record_failure(job, None, NetworkError("connect-failed", "x"))
    assert (written(job)["error"].step, written(job)["error"].transient) == (None, True)


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
    assert job.steps[4].state == "completed"
