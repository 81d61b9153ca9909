"""The job engine: workers that pick units by priority and age, and the operations that clients ask for.

Rules: document 2, "States and transitions", and document 3 §2, "Server side". Every change of a job is persisted
before anybody sees it, with the next version. A unit that is running when the server ends runs again at the next start.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
import traceback
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from deployments.sandbox.extraction.diagnostics import Stage
from deployments.sandbox.extraction.extract import Outcome
from deployments.sandbox.extraction.findings import QueryError
from deployments.sandbox.extraction.job import TRIES, Job, JobStatus, Priority, Severity, Unit, UnitState
from deployments.sandbox.extraction.store import JobStore
from deployments.sandbox.extraction.units import Aborted, Control, Units

logger = logging.getLogger("sandbox.extraction")
_RETRYABLE = (OSError, sqlite3.Error)
_IDLE = 1.0


class UnknownJobError(Exception):
    """There is no such job."""


class NotAllowedError(Exception):
    """The job's state does not allow the operation; the message names the state."""


class StaleVersionError(Exception):
    """The job has moved on; the message names the current version."""


@dataclass(frozen=True)
class Settings:
    """How the engine works."""

    batch_size: int = 500
    concurrency: int = 4
    """Units that run at once, over all jobs."""
    retry_delay: float = 5.0
    """Seconds until a unit that failed temporarily is tried again."""


@dataclass(frozen=True)
class _Claim:
    job: Job
    unit: str
    control: Control


class Engine:
    """Runs jobs."""

    def __init__(self, store: JobStore, units: Units, settings: Settings) -> None:
        self._store = store
        self._units = units
        self._settings = settings
        self._changed = threading.Condition()
        self._jobs: dict[str, Job] = {}
        self._running: dict[tuple[str, str], Control] = {}
        self._retry_at: dict[str, float] = {}
        self._deleting: set[str] = set()
        self._stopping = False
        self._workers: list[threading.Thread] = []

    def start(self) -> None:
        """Take up all jobs that are not final, and begin to work."""
        self._jobs = {job.id: job for job in self._store.load()}
        for number in range(self._settings.concurrency):
            worker = threading.Thread(target=self._work, name=f"sandbox-extraction-{number}", daemon=True)
            worker.start()
            self._workers.append(worker)

    def stop(self) -> None:
        """Give up what is running, and end the workers."""
        with self._changed:
            self._stopping = True
            for control in self._running.values():
                control.abort()
            self._changed.notify_all()
        for worker in self._workers:
            worker.join()

    # What clients ask for

    def submit(self, crtdl: bytes, patients: tuple[str, ...]) -> Job:
        """Begin a job."""
        now = self._units.clock()
        job = Job(
            id=str(uuid.uuid4()), created=now, updated=now, patients=patients, batch_size=self._settings.batch_size
        )
        with self._changed:
            self._store.add(job, crtdl)
            self._jobs[job.id] = job
            self._changed.notify_all()
        return job

    def get(self, identity: str) -> Job:
        """A job. Raises ``UnknownJobError``."""
        with self._changed:
            return self._need(identity)

    def jobs(self) -> list[Job]:
        """All jobs, newest first."""
        with self._changed:
            # In the order they came, which decides where two have one time.
            return sorted(self._jobs.values(), key=lambda job: job.created)[::-1]

    def stages(self, identity: str) -> dict[str, Stage]:
        """The batches of a job that are being processed and have reported a stage."""
        with self._changed:
            return {
                unit: control.stage
                for (job, unit), control in self._running.items()
                if job == identity and control.stage is not None and unit not in ("cohort", "core")
            }

    def crtdl(self, identity: str) -> bytes:
        """The query of a job. Raises ``UnknownJobError``."""
        with self._changed:
            self._need(identity)
            return self._store.crtdl(identity)

    def has_diagnostics(self, identity: str) -> bool:
        """Whether diagnostics were collected: at least one batch was worked on."""
        with self._changed:
            return bool(self._need(identity).batches)

    def pause(self, identity: str) -> Job:
        """Hold a running job. Units that run are finished and recorded. Raises ``NotAllowedError``."""
        with self._changed:
            job = self._need(identity)
            if not job.status.is_running:
                raise NotAllowedError(f"a job that is {job.status} cannot be paused")
            return self._save(job, status=JobStatus.PAUSED, held_from=job.status)

    def resume(self, identity: str) -> Job:
        """Let a paused job go on from where it was. Raises ``NotAllowedError``."""
        with self._changed:
            job = self._need(identity)
            if job.status is not JobStatus.PAUSED or job.held_from is None:
                raise NotAllowedError(f"a job that is {job.status} cannot be resumed")
            return self._save(job, status=job.held_from, held_from=None)

    def cancel(self, identity: str) -> Job:
        """End a job that has not ended; what runs is given up. Raises ``NotAllowedError``."""
        with self._changed:
            job = self._need(identity)
            if job.status.is_final:
                raise NotAllowedError(f"a job that is {job.status} cannot be cancelled")
            self._abort(identity)
            return self._save(job, status=JobStatus.CANCELLED, held_from=None, finished=self._units.clock())

    def prioritize(self, identity: str, version: int, priority: Priority) -> Job:
        """Change the priority of the version that the client knows. Raises ``StaleVersionError``."""
        with self._changed:
            job = self._need(identity)
            if job.version != version:
                raise StaleVersionError(f"the current version is {job.version}")
            return self._save(job, priority=priority)

    def delete(self, identity: str) -> None:
        """Remove a job and its results; waits for what is running to end.

        Raises ``UnknownJobError``, and ``OSError`` when the results cannot be removed: then the job stays.
        """
        with self._changed:
            self._need(identity)
            while identity in self._deleting:
                self._changed.wait()
                self._need(identity)
            self._deleting.add(identity)
            self._abort(identity)
            try:
                while any(job == identity for job, _ in self._running):
                    self._changed.wait()
                self._units.remove(identity)
                self._store.delete(identity)
                del self._jobs[identity]
                self._retry_at.pop(identity, None)
            finally:
                self._deleting.discard(identity)
                self._changed.notify_all()

    # The workers

    def _work(self) -> None:
        while True:
            with self._changed:
                claim = self._wait_for_claim()
            if claim is None:
                return
            try:
                self._carry_out(claim)
            except sqlite3.Error as error:
                # What came of the unit could not be written down: it will be done again.
                logger.error("the job store refuses: %s", type(error).__name__)  # noqa: TRY400
                time.sleep(_IDLE)
            finally:
                with self._changed:
                    self._running.pop((claim.job.id, claim.unit), None)
                    self._changed.notify_all()

    def _wait_for_claim(self) -> _Claim | None:
        while not self._stopping:
            try:
                claim = self._claim()
            except sqlite3.Error as error:
                # The disk refuses: nothing was changed, so nothing is lost by trying again.
                logger.error("the job store refuses: %s", type(error).__name__)  # noqa: TRY400
                claim = None
            if claim is not None:
                return claim
            due = self._next_retry()
            self._changed.wait(_IDLE if due is None else max(0.01, min(_IDLE, due - time.monotonic())))
        return None

    def _next_retry(self) -> float | None:
        waiting = (job.id for job in self._jobs.values() if job.status is JobStatus.TEMP_FAILED)
        return min((self._retry_at[name] for name in waiting if name in self._retry_at), default=None)

    def _claim(self) -> _Claim | None:
        """The next unit: of HIGH jobs before NORMAL ones, of older jobs first."""
        waiting = [job for job in self._jobs.values() if not job.status.is_final and job.id not in self._deleting]
        for job in sorted(waiting, key=lambda job: (job.priority is not Priority.HIGH, job.created)):
            unit = self._next_unit(job)
            if unit is not None:
                started = unit.started or self._units.clock()
                unit = msgspec.structs.replace(unit, state=UnitState.IN_PROGRESS, started=started)
                control = Control()
                current = self._save(self._jobs[job.id].with_unit(unit))
                self._running[(job.id, unit.id)] = control
                return _Claim(current, unit.id, control)
        return None

    def _next_unit(self, job: Job) -> Unit | None:
        """A unit of this job that can begin now, after the moves that need no work."""
        while True:
            match job.status:
                case JobStatus.TEMP_FAILED if self._retry_at.get(job.id, 0.0) <= time.monotonic():
                    self._retry_at.pop(job.id, None)
                    job = self._save(job, status=job.held_from or JobStatus.PENDING, held_from=None)
                case JobStatus.PENDING:
                    job = self._save(job, status=JobStatus.RUNNING_GET_COHORT, started=self._units.clock())
                case JobStatus.RUNNING_GET_COHORT if job.cohort.state is UnitState.FINISHED:
                    job = self._save(job, status=JobStatus.RUNNING_PROCESS_BATCH)
                case JobStatus.RUNNING_GET_COHORT:
                    return self._free(job, job.cohort)
                case JobStatus.RUNNING_PROCESS_BATCH if job.completed_batches == len(job.batches):
                    job = self._save(job, status=JobStatus.RUNNING_PROCESS_CORE)
                case JobStatus.RUNNING_PROCESS_BATCH:
                    return next((unit for batch in job.batches if (unit := self._free(job, batch)) is not None), None)
                case JobStatus.RUNNING_PROCESS_CORE if job.core.state.is_done:
                    self._save(job, status=JobStatus.COMPLETED, finished=self._units.clock())
                    return None
                case JobStatus.RUNNING_PROCESS_CORE:
                    return self._free(job, job.core)
                case _:
                    return None

    def _free(self, job: Job, unit: Unit) -> Unit | None:
        taken = unit.state.is_done or (job.id, unit.id) in self._running
        return None if taken else unit

    def _carry_out(self, claim: _Claim) -> None:
        try:
            self._run(claim)
        except Aborted:
            return
        except QueryError:
            self._failed(claim, "the query cannot be read", "QueryError", retry=False)
        except _RETRYABLE as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            self._failed(claim, reason, type(error).__name__, retry=True)
        except Exception as error:  # noqa: BLE001 - a worker outlives every job
            # The text of the error may quote a resource: name the place only.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}"
            logger.error("%s", place)  # noqa: TRY400
            self._failed(claim, "the sandbox, or the data, has a defect", place, retry=False)

    def _run(self, claim: _Claim) -> None:
        job, control = claim.job, claim.control
        with self._changed:
            crtdl = self._store.crtdl(job.id)
        if claim.unit == job.cohort.id:
            self._cohort_found(claim, self._units.cohort(job, crtdl, control))
        elif claim.unit == job.core.id:
            with self._changed:
                wanted, counts = self._store.wanted(job.id), self._store.counts(job.id)
            counts.pop(job.core.id, None)
            self._finished(claim, self._units.core(job, crtdl, wanted, counts, control))
        else:
            with self._changed:
                patients = self._store.patients(job.id, claim.unit)
            self._finished(claim, self._units.batch(job, crtdl, claim.unit, patients, control))

    def _cohort_found(self, claim: _Claim, patients: list[str]) -> None:
        size = claim.job.batch_size
        parts = [(str(uuid.uuid4()), patients[start : start + size]) for start in range(0, len(patients), size)]
        with self._changed:
            job = self._still_wanted(claim)
            unit = self._done(job.cohort, UnitState.FINISHED)
            job = msgspec.structs.replace(
                job.with_unit(unit), cohort_size=len(patients), batches=tuple(Unit(name) for name, _ in parts)
            )
            if not patients:
                job = job.with_issue(Severity.WARNING, "The cohort is empty: there are no batches to process.")
            changed = self._next_version(job)
            self._store.save_cohort(changed, parts)
            self._jobs[job.id] = changed

    def _finished(self, claim: _Claim, outcome: Outcome) -> None:
        with self._changed:
            job = self._still_wanted(claim)
            is_core = claim.unit == job.core.id
            state = UnitState.FINISHED if outcome.written or is_core else UnitState.SKIPPED
            unit = self._done(job.unit(claim.unit), state)
            unit = msgspec.structs.replace(unit, written=outcome.written, timings=dict(outcome.counts.timings))
            job = job.with_unit(unit)
            if outcome.nobody_consents:
                job = job.with_issue(
                    Severity.WARNING, "A batch was skipped because none of its patients consents.", f"batch {unit.id}"
                )
            if is_core and job.status is JobStatus.RUNNING_PROCESS_CORE:
                job = msgspec.structs.replace(job, status=JobStatus.COMPLETED, finished=self._units.clock())
            changed = self._next_version(job)
            self._store.save_batch(changed, unit.id, outcome.counts, outcome.wanted)
            self._jobs[job.id] = changed

    def _done(self, unit: Unit, state: UnitState) -> Unit:
        return msgspec.structs.replace(unit, state=state, attempts=unit.attempts + 1, finished=self._units.clock())

    def _failed(self, claim: _Claim, reason: str, diagnostics: str, *, retry: bool) -> None:
        with self._changed:
            try:
                job = self._still_wanted(claim)
            except Aborted:
                return
            unit = job.unit(claim.unit)
            attempts = unit.attempts + 1
            again = retry and attempts < TRIES
            state = UnitState.TEMP_FAILED if again else UnitState.FAILED
            job = job.with_unit(msgspec.structs.replace(unit, state=state, attempts=attempts))
            what = unit.id if unit.id in ("cohort", "core") else f"batch {unit.id}"
            changes: Mapping[str, Any]
            if again:
                text = f"Attempt {attempts} of {TRIES} failed, it will be repeated: {reason}"
                job = job.with_issue(Severity.WARNING, text, f"{what}: {diagnostics}")
                self._retry_at[job.id] = time.monotonic() + self._settings.retry_delay
                changes = {"status": JobStatus.TEMP_FAILED, "held_from": job.status} if job.status.is_running else {}
            else:
                text = f"The job failed after {attempts} attempts: {reason}"
                job = job.with_issue(Severity.FATAL, text, f"{what}: {diagnostics}")
                self._abort(job.id, but=claim.control)
                changes = {"status": JobStatus.FAILED, "held_from": None, "finished": self._units.clock()}
            self._save(job, **changes)

    def _still_wanted(self, claim: _Claim) -> Job:
        """The job as it is now. Raises ``Aborted`` when nobody wants the unit's result any more."""
        claim.control.check()
        return self._need(claim.job.id)

    # State; the lock is held

    def _need(self, identity: str) -> Job:
        if identity not in self._jobs:
            raise UnknownJobError
        return self._jobs[identity]

    def _abort(self, identity: str, but: Control | None = None) -> None:
        for (job, _), control in self._running.items():
            if job == identity and control is not but:
                control.abort()

    def _next_version(self, job: Job) -> Job:
        return msgspec.structs.replace(job, version=self._jobs[job.id].version + 1, updated=self._units.clock())

    def _save(self, job: Job, **changes: Any) -> Job:
        changed = self._next_version(msgspec.structs.replace(job, **changes))
        self._store.save(changed)
        self._jobs[job.id] = changed
        self._changed.notify_all()
        return changed
