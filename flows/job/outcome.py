"""End a run: record why, publish the job's page, and give the Prefect state that the run ends in.

Also the checks of a run of a deployment, which no command has made before: they may end it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

from prefect.client.schemas.objects import State
from prefect.exceptions import Pause
from prefect.states import Cancelled, Crashed, Failed

from flows.job.inputs import JobInputs, job_name
from flows.job.job import RunningJob
from flows.job.preflight import as_one_error, preflight
from flows.job.steps import announce_end, hold_back, leave_step, record_failure
from flows.job.watch import CANCEL, SUSPEND, end_now, stop_asked
from flows.prefect import runs
from flows.reports import page as pages
from flows.signals import signals
from tasks.shared.errors import GateError, InputError, SluiceError, Stopped, internal_error
from tasks.shared.log import logger
from tasks.shared.report import Problem

Outcome = State[Any]


class Ended(Exception):  # noqa: N818 - an end, not an error
    """End the run of the job in ``state``. Everything that must be recorded has been."""

    def __init__(self, state: Outcome) -> None:
        super().__init__(state.name)
        self.state = state


@contextmanager
def ends_at(job: RunningJob, position: int) -> Iterator[None]:
    """Let an error or a stop end the run at the step at ``position``.

    Raises:
        Ended: in place of ``SluiceError`` and ``Stopped``.
    """
    try:
        yield
    except Stopped as reason:
        raise Ended(stopped(job, position, reason)) from None
    except SluiceError as error:
        raise Ended(failed(job, position, error)) from None


def guarded(job: RunningJob, run: Callable[[], Outcome]) -> Outcome:
    """Run the job and record errors outside of its steps. An exception that left the flow would be pickled."""
    try:
        ended = run()
    except Ended as end:
        ended = end.state
    except Pause:
        if job.ended:
            raise  # the job parked itself, or was suspended while a step ran
        # Prefect's engine noticed the suspend first, between two steps.
        at = next((n for n, step in sorted(job.steps.items()) if step.state != "completed"), len(job.steps))
        return stopped(job, at, Stopped(SUSPEND))
    except SluiceError as error:
        return _failed_beside_steps(job, error)
    except Exception as defect:  # noqa: BLE001 - the seam where defects become reports
        return _failed_beside_steps(job, internal_error(defect))
    return ended


def _failed_beside_steps(job: RunningJob, error: SluiceError) -> Outcome:
    record_if_possible(lambda: record_failure(job, None, error))
    show(job, "failed")
    return Failed(message=error.render())


def record_if_possible(write: Callable[[], object]) -> None:
    """Record the end of the job, unless the Prefect API fails. Then only the exit code shows the end."""
    try:
        write()
    except SluiceError as unwritten:
        logger.error("the end of the job is not recorded: %s", unwritten.message)


def show(job: RunningJob, state: pages.PageState) -> None:
    """Publish the job's page with the ``state`` it is about to have."""
    pages.publish(job.page, job.record(), state, job.continued_with)


def failed(job: RunningJob, position: int, error: SluiceError) -> Outcome:
    """Record that a step failed."""
    name = job.step_names[position - 1]
    record = record_failure(job, position, error)
    show(job, "failed")
    return Failed(message=f"{name}: {record.render()}")


def held_back(job: RunningJob, position: int, error: GateError) -> Outcome:
    """Record that the release report found a stop at a step where no person decides."""
    hold_back(job, position, error)
    show(job, "failed")
    return Failed(message=error.render())


def cancelled(job: RunningJob, error: Problem) -> Ended:
    """Announce that a person's decision ends the job."""
    announce_end(job, "cancelled", error=error)
    show(job, "cancelled")
    return Ended(Cancelled(message=error.message))


def stopped(job: RunningJob, position: int, reason: Stopped) -> Outcome:
    """Record the stop. A cancel in the UI ends the job; a signal or a suspend leaves it to be continued.

    A worker passes a cancel on as a signal. A suspended run becomes stopped: Prefect would set it to Failed after a
    while.
    """
    asked = stop_asked(job.api, job.id)
    was_cancelled = CANCEL in (str(reason), asked)
    leave_step(job, position, "stopped", stopped_by=None if was_cancelled else str(reason))
    end: Literal["cancelled", "stopped"] = "cancelled" if was_cancelled else "stopped"
    announce_end(job, end, reason=CANCEL if was_cancelled else str(reason))
    show(job, end)
    if str(reason) == SUSPEND and asked is None:
        runs.leave()  # resumed meanwhile: the next process waits for the lock of this one
    if was_cancelled:
        return Cancelled(message="cancelled in the Prefect UI")
    return Crashed(name="Stopped", message=f"stopped by {reason}")


def watch_process(job: RunningJob, stack: ExitStack) -> None:
    """Handle signals and the loss of the server until the job ends."""
    api = job.api
    ending = partial(end_now, api.address, job.id)
    stack.enter_context(signals.stopping(job.stop, partial(ending, farewell=partial(end_without_waiting, job))))


def end_without_waiting(job: RunningJob, reason: str) -> None:
    """Announce the end of a process that does not wait for its threads: after a cancel, or by a signal."""
    job.presenter.close()
    announce_end(job, "cancelled" if reason == CANCEL else "stopped", reason=reason)
    stopped_text = f"job {job.id} is stopped\ncontinue with: {job.continued_with}"
    job.presenter.process_ends(f"job {job.id} is cancelled" if reason == CANCEL else stopped_text)


def refuse_scratch(inputs: JobInputs) -> None:
    """Check that the job is not kept where the worker removes everything when the run ends.

    Raises:
        InputError: ``jobs_dir`` is relative, and the worker gave the run a directory for the time being.
    """
    jobs_dir = inputs.load().config.jobs_dir
    if not jobs_dir.is_absolute() and runs.in_scratch_directory():
        raise InputError(
            "jobs-dir-scratch", "jobs_dir is relative to a directory that the worker removes when the run ends",
            context=f"jobs_dir: {jobs_dir}",
            hint="make jobs_dir absolute, or set working_dir of the work pool or deployment (deployments/prefect.yaml)",
        )  # fmt: skip


def name_and_check(job: RunningJob) -> None:
    """Name the run of a new job of a deployment, and run a command's checks before a job.

    Raises:
        Ended: the checks found something.
    """
    job.api.change(job.id, name=job_name(job.loaded, job.id, job.record().created))
    job.writer.read()
    findings = preflight(job.loaded, job.inputs, tell=logger.warning)
    if findings:
        for finding in findings:
            logger.error("%s", finding.render())
        record_failure(job, None, as_one_error(findings))
        show(job, "failed")
        raise Ended(Failed(message="\n".join(finding.render() for finding in findings)))
