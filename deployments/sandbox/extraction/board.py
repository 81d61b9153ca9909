"""Jobs in memory, the lock around them, and the file that preserves them through ``kill -9``.

Every change of a job is persisted with the next version before it becomes visible (document 3 §2, "version"). Only one
server can use a state directory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from deployments.sandbox.common.database import open_database, transaction
from deployments.sandbox.extraction.diagnostics import Counts
from deployments.sandbox.extraction.job import ExtractionJob, ExtractionJobStatus
from deployments.sandbox.extraction.selection import Pair
from deployments.sandbox.extraction.units import UnitControl

_SCHEMA = """
CREATE TABLE IF NOT EXISTS job (id TEXT PRIMARY KEY, state BLOB NOT NULL, crtdl BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS batch (
  job TEXT NOT NULL, id TEXT NOT NULL, patients BLOB NOT NULL, counts BLOB, wanted BLOB, PRIMARY KEY (job, id)
);
CREATE TABLE IF NOT EXISTS leaving (job TEXT PRIMARY KEY);
"""


class JobStore:
    """Persistent jobs, the patients of their batches, and the results of each batch."""

    def __init__(self, directory: Path) -> None:
        """Open the store in a directory. Raises ``SandboxStartError`` if another server uses it."""
        self._db = open_database(directory / "jobs.sqlite3", _SCHEMA)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def load(self) -> list[ExtractionJob]:
        """Return all jobs in order of arrival."""
        rows = self._db.execute("SELECT state FROM job ORDER BY rowid")
        return [msgspec.json.decode(row[0], type=ExtractionJob) for row in rows]

    def add(self, job: ExtractionJob, crtdl: bytes) -> None:
        """Store a new job with its query."""
        self._db.execute("INSERT INTO job VALUES (?,?,?)", (job.id, msgspec.json.encode(job), crtdl))

    def save(self, job: ExtractionJob) -> None:
        """Store the new state of a job."""
        self._db.execute("UPDATE job SET state=? WHERE id=?", (msgspec.json.encode(job), job.id))

    def save_cohort(self, job: ExtractionJob, batches: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Store the new state of a job together with the patients of its batches."""
        with transaction(self._db):
            self._db.execute("DELETE FROM batch WHERE job=?", (job.id,))
            rows = [(job.id, name, msgspec.json.encode(patients)) for name, patients in batches]
            self._db.executemany("INSERT INTO batch (job, id, patients) VALUES (?,?,?)", rows)
            self.save(job)

    def save_batch(self, job: ExtractionJob, name: str, counts: Counts, wanted: Sequence[Pair]) -> None:
        """Store the new state of a job together with the results of a batch or of the core pass."""
        with transaction(self._db):
            self._db.execute(
                "INSERT INTO batch (job, id, patients, counts, wanted) VALUES (?1,?2,'[]',?3,?4)"
                " ON CONFLICT (job, id) DO UPDATE SET counts=?3, wanted=?4",
                (job.id, name, msgspec.json.encode(counts), msgspec.json.encode(wanted)),
            )
            self.save(job)

    def crtdl(self, job: str) -> bytes:
        """Return the query of a job, unchanged."""
        row = self._db.execute("SELECT crtdl FROM job WHERE id=?", (job,)).fetchone()
        return bytes(row[0])

    def patients(self, job: str, name: str) -> list[str]:
        """Return the patients of a batch."""
        row = self._db.execute("SELECT patients FROM batch WHERE job=? AND id=?", (job, name)).fetchone()
        return msgspec.json.decode(row[0], type=list[str])

    def counts(self, job: str) -> dict[str, Counts]:
        """Return the counts of finished batches by id."""
        rows = self._db.execute("SELECT id, counts FROM batch WHERE job=? AND counts IS NOT NULL", (job,))
        return {name: msgspec.json.decode(counts, type=Counts) for name, counts in rows}

    def core_references(self, job: str) -> list[Pair]:
        """Return the references of all batches into the core file, sorted."""
        rows = self._db.execute("SELECT wanted FROM batch WHERE job=? AND wanted IS NOT NULL", (job,))
        found: set[Pair] = set()
        for (wanted,) in rows:
            found.update(msgspec.json.decode(wanted, type=list[Pair]))
        return sorted(found)

    def mark_removal(self, job: str) -> None:
        """Mark a job as being removed, so that the next start completes an interrupted removal."""
        self._db.execute("INSERT OR IGNORE INTO leaving VALUES (?)", (job,))

    def unmark_removal(self, job: str) -> None:
        """Undo ``mark_removal``."""
        self._db.execute("DELETE FROM leaving WHERE job=?", (job,))

    def interrupted_removals(self) -> list[str]:
        """Return the jobs whose removal was started but not completed."""
        return [row[0] for row in self._db.execute("SELECT job FROM leaving")]

    def delete(self, job: str) -> None:
        """Delete a job."""
        with transaction(self._db):
            self._db.execute("DELETE FROM leaving WHERE job=?", (job,))
            self._db.execute("DELETE FROM batch WHERE job=?", (job,))
            self._db.execute("DELETE FROM job WHERE id=?", (job,))


class UnknownJobError(Exception):
    """There is no such job."""


class JobBoard:
    """Jobs, running units and pending retries. The methods require the lock ``changed``."""

    def __init__(self, store: JobStore, clock: Callable[[], datetime]) -> None:
        self.store = store
        self.clock = clock
        self.changed = threading.Condition()
        """Lock for reading or changing any attribute here; notified of every change."""
        self.jobs: dict[str, ExtractionJob] = {}
        """Jobs in order of arrival."""
        self.running: dict[tuple[str, str], UnitControl] = {}
        """Running units by job and unit."""
        self.retry_at: dict[str, float] = {}
        """Monotonic time of the retry of each job that failed temporarily."""
        self.deleting: set[str] = set()
        self.stopping = False

    def need(self, identity: str) -> ExtractionJob:
        """Return a job. Raises ``UnknownJobError``."""
        if identity not in self.jobs:
            raise UnknownJobError
        return self.jobs[identity]

    def abort(self, identity: str, but: UnitControl | None = None) -> None:
        """Request that the running units of a job stop, except ``but``."""
        for (job, _), control in self.running.items():
            if job == identity and control is not but:
                control.abort()

    def next_version(self, job: ExtractionJob) -> ExtractionJob:
        """Return the job with its next version."""
        return msgspec.structs.replace(job, version=self.jobs[job.id].version + 1, updated=self.clock())

    def save(self, job: ExtractionJob, **changes: Any) -> ExtractionJob:
        """Persist a change of a job, then publish it. Raises ``sqlite3.Error`` and changes nothing."""
        changed = self.next_version(msgspec.structs.replace(job, **changes))
        self.store.save(changed)
        self.jobs[job.id] = changed
        self.changed.notify_all()
        return changed

    def next_retry(self) -> float | None:
        """Return the monotonic time of the next retry, or None."""
        waiting = (job.id for job in self.jobs.values() if job.status is ExtractionJobStatus.TEMP_FAILED)
        return min((self.retry_at[name] for name in waiting if name in self.retry_at), default=None)
