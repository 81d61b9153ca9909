"""The job engine: what clients ask for, and the threads that run the units of jobs.

Every change of a job is written with the next version before it becomes visible. A unit that runs when the server ends
runs again at the next start.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from deployments.sandbox.data import DATA
from deployments.sandbox.extraction.events import Stage
from deployments.sandbox.extraction.jobs import (
    TRIES,
    Job,
    JobPriority,
    JobStatus,
    JobStore,
    Parameters,
    Timings,
    Unit,
    UnitState,
)
from deployments.sandbox.service import FhirProblem, log_place

_IDLE = 0.2
"""Seconds between two checks for a unit whose retry is due."""


class Aborted(Exception):  # noqa: N818 - somebody asked for it
    """The unit was stopped because its job was cancelled or deleted, or the server ends."""


class UnitControl(threading.Event):
    """Controls a running unit: set, it asks the unit to stop."""

    stage: Stage | None = None
    """Current stage of a batch; None before the first."""

    def check(self, seconds: float = 0.0) -> None:
        """Raise ``Aborted`` if the unit was asked to stop, or is within ``seconds``."""
        if self.wait(seconds):
            raise Aborted


@dataclass(frozen=True)
class UnitDone:
    """The outcome of a unit: its end state, other changes of its job, and a warning about it."""

    unit: Unit
    changes: Mapping[str, Any] = field(default_factory=dict)
    warning: str | None = None


RunUnit = Callable[[Job, Unit, UnitControl], UnitDone]
"""Does the work of a unit. Raises ``OSError`` if a retry may succeed."""


@dataclass(frozen=True)
class ExtractionOptions:
    """Data and behaviour of an extraction server."""

    data: Path = DATA
    """Directory of FHIR NDJSON; one resource per line, or Bundles of them."""
    state: Path | None = None
    """Directory for jobs and results; None: a temporary one, deleted at the end."""
    batchsize: int = 500
    """Patients per batch (``extractor.batchsize``)."""
    maxconcurrency: int = 4
    """Units that run at the same time, over all jobs (``extractor.maxconcurrency``)."""
    batch_delay: float = 0.0
    """Seconds added to each cohort query, batch and core pass, so that a person can watch."""
    retry_delay: float = 5.0
    """Seconds before a unit that failed temporarily is tried again."""
    availability_delay: int = 0
    """Number of requests for each result file that are answered 404 first."""
    result_urls: Literal["absolute", "path", "host"] = "absolute"
    """Form of the URLs of files in the manifest; ``host`` leaves out the scheme."""
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    """Clock for ages, consents and the times of jobs."""
    wait: Callable[[UnitControl, float], None] = UnitControl.check
    """Function that waits for the parts of ``batch_delay``; a test can hold a unit there."""


class JobEngine:
    """Runs jobs. ``_changed`` guards the attributes set after it, and is notified of every change."""

    def __init__(self, store: JobStore, run: RunUnit, options: ExtractionOptions) -> None:
        self._store = store
        self._run = run
        self._options = options
        self._changed = threading.Condition()
        self._jobs: dict[str, Job] = {}
        self._running: dict[tuple[str, str], UnitControl] = {}
        self._retry_at: dict[str, float] = {}
        self._stopping = False

    @contextmanager
    def working(self) -> Iterator[None]:
        """Continue all unfinished jobs and run new ones while the block runs."""
        self._jobs = {job.id: job for job in self._store.load()}
        names = (f"sandbox-extraction-{number}" for number in range(self._options.maxconcurrency))
        threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._stopping = True
                for control in self._running.values():
                    control.set()
                self._changed.notify_all()
            for thread in threads:
                thread.join()

    # Operations

    def submit(self, crtdl: bytes, patients: tuple[str, ...]) -> Job:
        """Start a job."""
        now = self._options.clock()
        parameters = Parameters(msgspec.Raw(crtdl), patients, self._options.batchsize)
        job = Job(str(uuid.uuid4()), now, parameters, updated_at=now)
        with self._changed:
            self._store.save(job)
            self._jobs[job.id] = job
            self._changed.notify_all()
        return job

    def get(self, identity: str) -> Job:
        """Return a job. Raises ``FhirProblem`` 404."""
        with self._changed:
            return self._need(identity)

    def jobs(self) -> list[Job]:
        """Return all jobs, newest first."""
        with self._changed:
            return sorted(self._jobs.values(), key=lambda job: job.created_at)[::-1]

    def stages(self, identity: str) -> dict[str, Stage]:
        """Return the stages of a job's running batches that have reported one."""
        with self._changed:
            controls = ((unit, control) for (job, unit), control in self._running.items() if job == identity)
            return {
                unit: control.stage
                for unit, control in controls
                if control.stage is not None and not control.is_set() and unit not in ("cohort", "core")
            }

    def pause(self, identity: str) -> Job:
        """Pause a running job; running units are finished and recorded. Raises ``FhirProblem`` 409."""
        with self._changed:
            job = self._need(identity)
            if not job.status.is_running:
                raise _conflict(f"a job that is {job.status} cannot be paused")
            return self._save(job, status=JobStatus.PAUSED, held_from=job.status)

    def resume(self, identity: str) -> Job:
        """Continue a paused job. Raises ``FhirProblem`` 409."""
        with self._changed:
            job = self._need(identity)
            if job.status is not JobStatus.PAUSED or job.held_from is None:
                raise _conflict(f"a job that is {job.status} cannot be resumed")
            return self._save(job, status=job.held_from, held_from=None)

    def cancel(self, identity: str) -> Job:
        """Cancel an unfinished job and interrupt its units. Raises ``FhirProblem`` 409."""
        with self._changed:
            job = self._need(identity)
            if job.status.is_final:
                raise _conflict(f"a job that is {job.status} cannot be cancelled")
            self._abort(identity)
            return self._save(job, status=JobStatus.CANCELLED, held_from=None, finished_at=self._options.clock())

    def prioritize(self, identity: str, version: int, priority: JobPriority) -> Job:
        """Change the priority if the client's version is current. Raises ``FhirProblem`` 409."""
        with self._changed:
            job = self._need(identity)
            if job.version != version:
                raise _conflict(f"the current version is {job.version}")
            return self._save(job, priority=priority)

    def delete(self, identity: str) -> None:
        """Remove a job and its results, after its running units have ended.

        Raises ``FhirProblem`` 404, and ``OSError`` if the results cannot be removed; the job then stays.
        """
        with self._changed:
            removed = self._need(identity)
            del self._jobs[identity]
            self._abort(identity)
            while any(job == identity for job, _ in self._running):
                self._changed.wait()
            try:
                self._store.delete(identity)
            except OSError:
                self._jobs[identity] = removed
                raise

    def _need(self, identity: str) -> Job:
        if identity not in self._jobs:
            raise FhirProblem(404, "not-found", "There is no such job.")
        return self._jobs[identity]

    def _abort(self, identity: str) -> None:
        for (job, _), control in self._running.items():
            if job == identity:
                control.set()

    def _save(self, job: Job, **changes: Any) -> Job:
        """Write a change of a job, then publish it."""
        version = self._jobs[job.id].version + 1
        changed = msgspec.structs.replace(job, **changes, version=version, updated_at=self._options.clock())
        self._store.save(changed)
        self._jobs[job.id] = changed
        self._changed.notify_all()
        return changed

    # Units

    def _work(self) -> None:
        while True:
            try:
                claim = self._claim_or_wait()
            except OSError as error:  # the job's file cannot be written: nothing was changed
                log_place(error)
                time.sleep(_IDLE)
                continue
            if claim is None:
                return
            job, unit, control = claim
            try:
                self._carry_out(job, unit, control)
            finally:
                with self._changed:
                    self._running.pop((job.id, unit.id), None)
                    self._changed.notify_all()

    def _claim_or_wait(self) -> tuple[Job, Unit, UnitControl] | None:
        with self._changed:
            while not self._stopping:
                claim = self._claim()
                if claim is not None:
                    return claim
                self._changed.wait(_IDLE)
        return None

    def _claim(self) -> tuple[Job, Unit, UnitControl] | None:
        """Take the next unit: HIGH jobs before NORMAL ones, then older jobs first."""
        waiting = [job for job in self._jobs.values() if not job.status.is_final]
        for job in sorted(waiting, key=lambda job: (job.priority is not JobPriority.HIGH, job.created_at)):
            unit = self._next_unit(job)
            if unit is not None:
                timings = Timings(unit.timings.started_at or self._options.clock())
                unit = msgspec.structs.replace(unit, state=UnitState.IN_PROGRESS, timings=timings)
                current = self._save(self._jobs[job.id].with_unit(unit))
                control = self._running[(job.id, unit.id)] = UnitControl()
                return current, unit, control
        return None

    def _next_unit(self, job: Job) -> Unit | None:
        """Return a unit of this job that can start now, after changes of state that need no work."""
        while True:
            match job.status:
                case JobStatus.TEMP_FAILED if self._retry_at.get(job.id, 0.0) <= time.monotonic():
                    self._retry_at.pop(job.id, None)
                    job = self._save(job, status=job.held_from or JobStatus.PENDING, held_from=None)
                case JobStatus.PENDING:
                    started = self._options.clock()
                    job = self._save(job, status=JobStatus.RUNNING_GET_COHORT, started_at=started)
                case JobStatus.RUNNING_GET_COHORT if job.cohort.state is UnitState.FINISHED:
                    job = self._save(job, status=JobStatus.RUNNING_PROCESS_BATCH)
                case JobStatus.RUNNING_GET_COHORT:
                    return self._free(job, job.cohort)
                case JobStatus.RUNNING_PROCESS_BATCH if job.completed_batches == len(job.batches):
                    job = self._save(job, status=JobStatus.RUNNING_PROCESS_CORE)
                case JobStatus.RUNNING_PROCESS_BATCH:
                    return next((unit for batch in job.batches if (unit := self._free(job, batch)) is not None), None)
                case JobStatus.RUNNING_PROCESS_CORE if job.core.state.is_done:
                    self._save(job, status=JobStatus.COMPLETED, finished_at=self._options.clock())
                    return None
                case JobStatus.RUNNING_PROCESS_CORE:
                    return self._free(job, job.core)
                case _:
                    return None

    def _free(self, job: Job, unit: Unit) -> Unit | None:
        return None if unit.state.is_done or (job.id, unit.id) in self._running else unit

    def _carry_out(self, job: Job, unit: Unit, control: UnitControl) -> None:
        try:
            self._finished(job, self._run(job, unit, control), control)
        except Aborted:
            return
        except OSError as error:
            reason = error.strerror or type(error).__name__
            self._failed(job, unit, control, reason, type(error).__name__, retry=True)
        except Exception as error:  # noqa: BLE001 - a worker outlives every job
            self._failed(job, unit, control, "internal error, or invalid data", log_place(error), retry=False)

    def _finished(self, claimed: Job, done: UnitDone, control: UnitControl) -> None:
        """Record a finished unit in its job, which others may have changed meanwhile."""
        with self._changed:
            control.check()
            job = self._need(claimed.id)
            attempts = job.unit(done.unit.id).attempts + 1
            timings = msgspec.structs.replace(done.unit.timings, finished_at=self._options.clock())
            unit = msgspec.structs.replace(done.unit, attempts=attempts, timings=timings)
            if done.warning is not None:
                job = job.with_issue("WARNING", done.warning, _name(unit))
            self._save(job.with_unit(unit), **done.changes)

    def _failed(
        self, claimed: Job, unit: Unit, control: UnitControl, reason: str, diagnostics: str, *, retry: bool
    ) -> None:
        with self._changed:
            if control.is_set() or claimed.id not in self._jobs:
                return
            job = self._jobs[claimed.id]
            attempts = job.unit(unit.id).attempts + 1
            again = retry and attempts < TRIES
            state = UnitState.TEMP_FAILED if again else UnitState.FAILED
            job = job.with_unit(msgspec.structs.replace(job.unit(unit.id), state=state, attempts=attempts))
            place = f"{_name(unit)}: {diagnostics}"
            if again:
                text = f"Attempt {attempts} of {TRIES} failed and will be retried: {reason}"
                job = job.with_issue("WARNING", text, place)
                self._retry_at[job.id] = time.monotonic() + self._options.retry_delay
                held = {"status": JobStatus.TEMP_FAILED, "held_from": job.status} if job.status.is_running else {}
                self._save(job, **held)
                return
            text = f"The job failed after {attempts} attempts: {reason}"
            job = job.with_issue("FATAL", text, place)
            self._abort(job.id)
            self._save(job, status=JobStatus.FAILED, held_from=None, finished_at=self._options.clock())


def _name(unit: Unit) -> str:
    return unit.id if unit.id in ("cohort", "core") else f"batch {unit.id}"


def _conflict(text: str) -> FhirProblem:
    return FhirProblem(409, "conflict", text)
