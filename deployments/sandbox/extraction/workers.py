"""Threads that choose units by priority and age, run them, and record the results.

Rules: document 3 §2, "scheduling", "moves", "restart". A unit that is running when the server ends runs again at the
next start.
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

from deployments.sandbox.extraction.board import JobBoard
from deployments.sandbox.extraction.extract import UnitOutcome
from deployments.sandbox.extraction.job import (
    TRIES,
    ExtractionJob,
    ExtractionJobStatus,
    JobPriority,
    Severity,
    UnitState,
    WorkUnit,
)
from deployments.sandbox.extraction.query import QueryError
from deployments.sandbox.extraction.units import Aborted, UnitControl, Units

logger = logging.getLogger("sandbox.extraction")
_RETRYABLE = (OSError, sqlite3.Error)
_IDLE = 1.0


@dataclass(frozen=True)
class _Claim:
    job: ExtractionJob
    unit: str
    control: UnitControl


class UnitWorkers:
    """Threads that work on the jobs of a board."""

    def __init__(self, board: JobBoard, units: Units, count: int, retry_delay: float) -> None:
        """Prepare the threads. ``retry_delay``: seconds before a unit that failed temporarily is retried."""
        self._board = board
        self._units = units
        self._retry_delay = retry_delay
        self._threads = [
            threading.Thread(target=self._work, name=f"sandbox-extraction-{number}", daemon=True)
            for number in range(count)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Interrupt running units, and end the threads."""
        with self._board.changed:
            self._board.stopping = True
            for control in self._board.running.values():
                control.abort()
            self._board.changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._board.changed:
                claim = self._wait_for_claim()
            if claim is None:
                return
            try:
                self._carry_out(claim)
            except sqlite3.Error as error:
                # The result of the unit could not be stored: the unit will run again.
                logger.error("the job store failed: %s", type(error).__name__)  # noqa: TRY400
                time.sleep(_IDLE)
            finally:
                with self._board.changed:
                    self._board.running.pop((claim.job.id, claim.unit), None)
                    self._board.changed.notify_all()

    def _wait_for_claim(self) -> _Claim | None:
        while not self._board.stopping:
            try:
                claim = self._claim()
            except sqlite3.Error as error:
                # The disk fails: nothing was changed, so retrying loses nothing.
                logger.error("the job store failed: %s", type(error).__name__)  # noqa: TRY400
                claim = None
            if claim is not None:
                return claim
            due = self._board.next_retry()
            self._board.changed.wait(_IDLE if due is None else max(0.01, min(_IDLE, due - time.monotonic())))
        return None

    def _claim(self) -> _Claim | None:
        """Return the next unit: HIGH jobs before NORMAL ones, then older jobs first, or None."""
        waiting = [
            job for job in self._board.jobs.values() if not job.status.is_final and job.id not in self._board.deleting
        ]
        for job in sorted(waiting, key=lambda job: (job.priority is not JobPriority.HIGH, job.created)):
            unit = self._next_unit(job)
            if unit is not None:
                started = unit.started or self._units.clock()
                unit = msgspec.structs.replace(unit, state=UnitState.IN_PROGRESS, started=started)
                control = UnitControl()
                current = self._board.save(self._board.jobs[job.id].with_unit(unit))
                self._board.running[(job.id, unit.id)] = control
                return _Claim(current, unit.id, control)
        return None

    def _next_unit(self, job: ExtractionJob) -> WorkUnit | None:
        """Return a unit of this job that can start now, after state changes that need no work."""
        while True:
            match job.status:
                case ExtractionJobStatus.TEMP_FAILED if self._board.retry_at.get(job.id, 0.0) <= time.monotonic():
                    self._board.retry_at.pop(job.id, None)
                    job = self._board.save(job, status=job.held_from or ExtractionJobStatus.PENDING, held_from=None)
                case ExtractionJobStatus.PENDING:
                    job = self._board.save(
                        job, status=ExtractionJobStatus.RUNNING_GET_COHORT, started=self._units.clock()
                    )
                case ExtractionJobStatus.RUNNING_GET_COHORT if job.cohort.state is UnitState.FINISHED:
                    job = self._board.save(job, status=ExtractionJobStatus.RUNNING_PROCESS_BATCH)
                case ExtractionJobStatus.RUNNING_GET_COHORT:
                    return self._free(job, job.cohort)
                case ExtractionJobStatus.RUNNING_PROCESS_BATCH if job.completed_batches == len(job.batches):
                    job = self._board.save(job, status=ExtractionJobStatus.RUNNING_PROCESS_CORE)
                case ExtractionJobStatus.RUNNING_PROCESS_BATCH:
                    return next((unit for batch in job.batches if (unit := self._free(job, batch)) is not None), None)
                case ExtractionJobStatus.RUNNING_PROCESS_CORE if job.core.state.is_done:
                    self._board.save(job, status=ExtractionJobStatus.COMPLETED, finished=self._units.clock())
                    return None
                case ExtractionJobStatus.RUNNING_PROCESS_CORE:
                    return self._free(job, job.core)
                case _:
                    return None

    def _free(self, job: ExtractionJob, unit: WorkUnit) -> WorkUnit | None:
        taken = unit.state.is_done or (job.id, unit.id) in self._board.running
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
            # The text of the error can quote a resource: log the location only.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}"
            logger.error("%s", place)  # noqa: TRY400
            self._failed(claim, "internal error, or invalid data", place, retry=False)

    def _run(self, claim: _Claim) -> None:
        job, control = claim.job, claim.control
        with self._board.changed:
            crtdl = self._board.store.crtdl(job.id)
        if claim.unit == job.cohort.id:
            self._cohort_found(claim, self._units.cohort(job, crtdl, control))
        elif claim.unit == job.core.id:
            with self._board.changed:
                wanted, counts = self._board.store.core_references(job.id), self._board.store.counts(job.id)
            counts.pop(job.core.id, None)
            self._finished(claim, self._units.core(job, crtdl, wanted, counts, control))
        else:
            with self._board.changed:
                patients = self._board.store.patients(job.id, claim.unit)
            self._finished(claim, self._units.batch(job, crtdl, claim.unit, patients, control))

    def _cohort_found(self, claim: _Claim, patients: list[str]) -> None:
        size = claim.job.batch_size
        parts = [(str(uuid.uuid4()), patients[start : start + size]) for start in range(0, len(patients), size)]
        with self._board.changed:
            job = self._still_wanted(claim)
            unit = self._done(job.cohort, UnitState.FINISHED)
            job = msgspec.structs.replace(
                job.with_unit(unit), cohort_size=len(patients), batches=tuple(WorkUnit(name) for name, _ in parts)
            )
            if not patients:
                job = job.with_issue(Severity.WARNING, "The cohort is empty: there are no batches to process.")
            changed = self._board.next_version(job)
            self._board.store.save_cohort(changed, parts)
            self._board.jobs[job.id] = changed

    def _finished(self, claim: _Claim, outcome: UnitOutcome) -> None:
        with self._board.changed:
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
            if is_core and job.status is ExtractionJobStatus.RUNNING_PROCESS_CORE:
                job = msgspec.structs.replace(job, status=ExtractionJobStatus.COMPLETED, finished=self._units.clock())
            changed = self._board.next_version(job)
            self._board.store.save_batch(changed, unit.id, outcome.counts, outcome.wanted)
            self._board.jobs[job.id] = changed

    def _done(self, unit: WorkUnit, state: UnitState) -> WorkUnit:
        return msgspec.structs.replace(unit, state=state, attempts=unit.attempts + 1, finished=self._units.clock())

    def _failed(self, claim: _Claim, reason: str, diagnostics: str, *, retry: bool) -> None:
        with self._board.changed:
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
                text = f"Attempt {attempts} of {TRIES} failed and will be retried: {reason}"
                job = job.with_issue(Severity.WARNING, text, f"{what}: {diagnostics}")
                self._board.retry_at[job.id] = time.monotonic() + self._retry_delay
                changes = (
                    {"status": ExtractionJobStatus.TEMP_FAILED, "held_from": job.status}
                    if job.status.is_running
                    else {}
                )
            else:
                text = f"The job failed after {attempts} attempts: {reason}"
                job = job.with_issue(Severity.FATAL, text, f"{what}: {diagnostics}")
                self._board.abort(job.id, but=claim.control)
                changes = {"status": ExtractionJobStatus.FAILED, "held_from": None, "finished": self._units.clock()}
            self._board.save(job, **changes)

    def _still_wanted(self, claim: _Claim) -> ExtractionJob:
        """Return the current job. Raises ``Aborted`` if the unit's result is no longer needed."""
        claim.control.check()
        return self._board.need(claim.job.id)
