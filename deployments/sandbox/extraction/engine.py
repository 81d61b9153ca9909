"""The job engine: operations that clients request, over the workers that run the jobs.

Rules: document 2, "States and transitions", and document 3 §2, "Server side".
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass

from deployments.sandbox.extraction.board import JobBoard, JobStore, UnknownJobError
from deployments.sandbox.extraction.diagnostics import Stage
from deployments.sandbox.extraction.job import ExtractionJob, ExtractionJobStatus, JobPriority
from deployments.sandbox.extraction.units import Units
from deployments.sandbox.extraction.workers import UnitWorkers

__all__ = ["JobEngine", "JobEngineSettings", "NotAllowedError", "StaleVersionError", "UnknownJobError"]

logger = logging.getLogger("sandbox.extraction")


class NotAllowedError(Exception):
    """The job's state does not allow the operation. The message names the state."""


class StaleVersionError(Exception):
    """The client's version is not current. The message names the current version."""


@dataclass(frozen=True)
class JobEngineSettings:
    """Settings of the engine."""

    batch_size: int = 500
    concurrency: int = 4
    """Units that run at the same time, over all jobs."""
    retry_delay: float = 5.0
    """Seconds before a unit that failed temporarily is retried."""


class JobEngine:
    """Runs jobs."""

    def __init__(self, store: JobStore, units: Units, settings: JobEngineSettings) -> None:
        self._units = units
        self._settings = settings
        self._board = JobBoard(store, units.clock)
        self._workers = UnitWorkers(self._board, units, settings.concurrency, settings.retry_delay)

    def start(self) -> None:
        """Complete interrupted removals, continue all unfinished jobs, and start the workers."""
        for identity in self._board.store.interrupted_removals():
            try:
                self._units.remove(identity)
            except OSError as error:
                logger.warning("results of a deleted job cannot be removed: %s", type(error).__name__)
            self._board.store.delete(identity)
        self._board.jobs = {job.id: job for job in self._board.store.load()}
        self._workers.start()

    def stop(self) -> None:
        """Interrupt running units and end the workers."""
        self._workers.stop()

    def submit(self, crtdl: bytes, patients: tuple[str, ...]) -> ExtractionJob:
        """Start a job."""
        now = self._units.clock()
        job = ExtractionJob(
            id=str(uuid.uuid4()), created=now, updated=now, patients=patients, batch_size=self._settings.batch_size
        )
        with self._board.changed:
            self._board.store.add(job, crtdl)
            self._board.jobs[job.id] = job
            self._board.changed.notify_all()
        return job

    def get(self, identity: str) -> ExtractionJob:
        """Return a job. Raises ``UnknownJobError``."""
        with self._board.changed:
            return self._board.need(identity)

    def jobs(self) -> list[ExtractionJob]:
        """Return all jobs, newest first."""
        with self._board.changed:
            # The order of arrival decides between equal times.
            return sorted(self._board.jobs.values(), key=lambda job: job.created)[::-1]

    def stages(self, identity: str) -> dict[str, Stage]:
        """Return the stages of a job's running batches that have reported one."""
        with self._board.changed:
            return {
                unit: control.stage
                for (job, unit), control in self._board.running.items()
                if job == identity
                and control.stage is not None
                and not control.is_aborted
                and unit not in ("cohort", "core")
            }

    def crtdl(self, identity: str) -> bytes:
        """Return the query of a job. Raises ``UnknownJobError``."""
        with self._board.changed:
            self._board.need(identity)
            return self._board.store.crtdl(identity)

    def pause(self, identity: str) -> ExtractionJob:
        """Pause a running job; running units are completed and recorded. Raises ``NotAllowedError``."""
        with self._board.changed:
            job = self._board.need(identity)
            if not job.status.is_running:
                raise NotAllowedError(f"a job that is {job.status} cannot be paused")
            return self._board.save(job, status=ExtractionJobStatus.PAUSED, held_from=job.status)

    def resume(self, identity: str) -> ExtractionJob:
        """Continue a paused job. Raises ``NotAllowedError``."""
        with self._board.changed:
            job = self._board.need(identity)
            if job.status is not ExtractionJobStatus.PAUSED or job.held_from is None:
                raise NotAllowedError(f"a job that is {job.status} cannot be resumed")
            return self._board.save(job, status=job.held_from, held_from=None)

    def cancel(self, identity: str) -> ExtractionJob:
        """Cancel an unfinished job and interrupt its units. Raises ``NotAllowedError``."""
        with self._board.changed:
            job = self._board.need(identity)
            if job.status.is_final:
                raise NotAllowedError(f"a job that is {job.status} cannot be cancelled")
            self._board.abort(identity)
            return self._board.save(
                job, status=ExtractionJobStatus.CANCELLED, held_from=None, finished=self._units.clock()
            )

    def prioritize(self, identity: str, version: int, priority: JobPriority) -> ExtractionJob:
        """Change the priority if the client's version is current. Raises ``StaleVersionError``."""
        with self._board.changed:
            job = self._board.need(identity)
            if job.version != version:
                raise StaleVersionError(f"the current version is {job.version}")
            return self._board.save(job, priority=priority)

    def delete(self, identity: str) -> None:
        """Remove a job and its results, after its running units have ended.

        Raises ``UnknownJobError``, and ``OSError`` if the results cannot be removed; the job then remains.
        """
        with self._board.changed:
            self._board.need(identity)
            while identity in self._board.deleting:
                self._board.changed.wait()
                self._board.need(identity)
            self._board.deleting.add(identity)
            self._board.abort(identity)
            try:
                while any(job == identity for job, _ in self._board.running):
                    self._board.changed.wait()
                self._board.store.mark_removal(identity)
                try:
                    self._units.remove(identity)
                except OSError:
                    self._board.store.unmark_removal(identity)
                    raise
                self._board.store.delete(identity)
                del self._board.jobs[identity]
                self._board.retry_at.pop(identity, None)
            finally:
                self._board.deleting.discard(identity)
                self._board.changed.notify_all()
