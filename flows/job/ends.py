"""End a run of a job: record how it ended, publish the job's page, set Prefect's state, and leave the flow.

Our REST client sets the state, and ``Pause`` leaves the flow. Any other exception would be logged with its traceback,
and Prefect would try for minutes to report it while the API is away.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import Pause, TerminationSignal

from flows.job.inputs import JobInputs
from flows.job.problem import Problem, reported
from flows.job.record import JobRecord, RecordWriter, Value, at, continue_hint
from flows.job.running import RunningJob
from flows.job.state import JobState
from flows.job.watch import CANCEL, SUSPEND, stop_asked
from flows.prefect import runs
from flows.prefect.address import configured_api
from flows.prefect.api import PrefectApi
from flows.reports.terminal import Presenter
from flows.signals import exit_code_of
from tasks.shared.errors import SluiceError, Stopped
from tasks.shared.log import logger

LAST_WORDS: Final = 2.0
"""Timeout in seconds of the call that records a stop when the process ends without waiting for its threads."""

TYPES: Final = {
    JobState.COMPLETED: "COMPLETED",
    JobState.FAILED: "FAILED",
    JobState.STOPPED: "CRASHED",
    JobState.CANCELLED: "CANCELLED",
}
"""Prefect's state type for each end of a job. The name of the state is the job's state, capitalized."""


@contextmanager
def ending(job: RunningJob) -> Iterator[None]:
    """End the run after an error or a stop in the block, at the current step. Every exception becomes ``Pause``."""
    try:
        yield
    except Pause:
        if job.writer.state is not JobState.RUNNING:
            raise  # this process ended or parked the run
        job.stop.request(SUSPEND)  # Prefect noticed the suspend before our ``Watch``
        _stopped(job, SUSPEND)
    except Stopped as stop:
        _stopped(job, str(stop))
    except Exception as raised:  # noqa: BLE001 - a defect becomes an error of the job
        error = reported(raised)
        logger.error("%s", error.render())
        end(job, JobState.FAILED, error.render(), Problem.of(error, step=job.step_name))


def _stopped(job: RunningJob, reason: str) -> NoReturn:
    """End the run after a signal, a suspend or a cancel. A worker passes on a cancel in the UI as a signal."""
    asked: str | None = reason
    with suppress(SluiceError):
        asked = stop_asked(job.api, job.id)
    if CANCEL in (reason, asked):
        end(job, JobState.CANCELLED, "cancelled in the Prefect UI")
    if reason == SUSPEND and asked is None:
        runs.leave()  # resumed meanwhile: the next process waits for this one's lock
    end(job, JobState.STOPPED, f"stopped by {reason}")


def end(job: RunningJob, how: JobState, message: str, error: Problem | None = None) -> NoReturn:
    """End the run by ``Pause``. ``error`` is why the job failed, or the rejection that cancelled it; else ``None``."""
    go_on = f"; {continue_hint(job.record())}" if how in {JobState.FAILED, JobState.STOPPED} else ""
    logger.info("the job is %s (%s)%s", how, error.reference if error else message, go_on)
    job.writer.state = how
    changes: dict[str, Value] = {"progress": None, "error": error}
    if how is JobState.STOPPED:
        changes["stopped_by"] = job.stop.reason
    step = job.steps[job.position] if job.position else None
    if step is not None and step.state in {"running", "waiting"}:
        left = "failed" if how is JobState.FAILED else "stopped"
        changes[at("step", step.position)] = step.model_copy(update={"state": left})
    try:
        job.writer.write(changes)
    except SluiceError as away:
        logger.error("the end of the job is not recorded: %s", away.message)
    job.show()
    line = f"{job.step_name}: {message}" if how is JobState.FAILED and job.step_name else message
    _leave(job.api, job.id, how, line)


def _leave(api: PrefectApi, job_id: str, how: JobState, message: str) -> NoReturn:
    """Set the state of the run if the API answers, and leave the flow so that Prefect adds no state of its own."""
    with suppress(SluiceError):
        api.set_state(job_id, TYPES[how], name=how.capitalize(), message=message)
    raise Pause(state=State(type=StateType(TYPES[how]), name=how.capitalize(), message=message))


def give_up(job_id: str, inputs: JobInputs, presenter: Presenter, reason: str) -> None:
    """Record a stop in one attempt, just before the process ends while its threads still work.

    The files in progress have no final names yet. If the attempt fails, the job is shown as interrupted.
    """
    presenter.close()
    how = JobState.CANCELLED if reason == CANCEL else JobState.STOPPED
    logger.warning("the job is %s (%s); the process ends without waiting for its threads", how, reason)
    try:
        with PrefectApi(configured_api(), timeout=LAST_WORDS, patience=0) as api:
            api.set_state(job_id, TYPES[how], name=how.capitalize(), message=f"stopped by {reason}")
    except SluiceError as error:
        logger.error("the stop could not be recorded: %s", error.message)
    record = JobRecord.of({"id": job_id, "parameters": inputs.parameters()}, JobState.STOPPED)
    presenter.process_ends(f"job {job_id} is {how}" + (f"\n{continue_hint(record)}" if how is JobState.STOPPED else ""))


def fail_early(api: PrefectApi, job_id: str, problem: Exception) -> NoReturn:
    """End a run whose job could not be opened. Raises ``Pause``."""
    error = reported(problem)
    logger.error("the job is failed: %s", error.render())
    with suppress(SluiceError):
        RecordWriter(api, job_id).write({"error": Problem.of(error)})
    _leave(api, job_id, JobState.FAILED, error.render())


@contextmanager
def stop_recorded(api: PrefectApi, job_id: str) -> Iterator[None]:
    """Record a stop by a signal that came before the flow set its handlers, or after it removed them."""
    try:
        yield
    except (SystemExit, TerminationSignal) as signal:
        with suppress(SluiceError):  # without Prefect the job is shown as interrupted
            run = api.read_run(job_id) or {}
            if run.get("state_type") in {"PENDING", "RUNNING"} or run.get("state_name") == "Crashed":
                api.set_state(job_id, "CRASHED", name="Stopped", message="stopped by a signal")
        sys.exit(signal.code if isinstance(signal, SystemExit) else exit_code_of("SIGTERM"))
