"""The jobs as everybody sees them, and the one lock around them.

Every change of a job is persisted before anybody sees it, with the next version (document 3 §2, "version").
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from deployments.sandbox.extraction.job import Job, JobStatus
from deployments.sandbox.extraction.store import JobStore
from deployments.sandbox.extraction.units import Control


class UnknownJobError(Exception):
    """There is no such job."""


class Board:
    """Jobs, what is running of them, and what is to be tried again. The methods expect ``changed`` to be held."""

    def __init__(self, store: JobStore, clock: Callable[[], datetime]) -> None:
        self.store = store
        self.clock = clock
        self.changed = threading.Condition()
        """Held by whoever looks at, or changes, anything here; told of every change."""
        self.jobs: dict[str, Job] = {}
        """In the order they came."""
        self.running: dict[tuple[str, str], Control] = {}
        """By job and unit."""
        self.retry_at: dict[str, float] = {}
        """When, on the monotonic clock, a job that failed temporarily goes on."""
        self.deleting: set[str] = set()
        self.stopping = False

    def need(self, identity: str) -> Job:
        """A job. Raises ``UnknownJobError``."""
        if identity not in self.jobs:
            raise UnknownJobError
        return self.jobs[identity]

    def abort(self, identity: str, but: Control | None = None) -> None:
        """Ask what runs of a job to give up."""
        for (job, _), control in self.running.items():
            if job == identity and control is not but:
                control.abort()

    def next_version(self, job: Job) -> Job:
        """The job with its next version."""
        return msgspec.structs.replace(job, version=self.jobs[job.id].version + 1, updated=self.clock())

    def save(self, job: Job, **changes: Any) -> Job:
        """Persist a change of a job, then show it. Raises ``sqlite3.Error`` when nothing was changed."""
        changed = self.next_version(msgspec.structs.replace(job, **changes))
        self.store.save(changed)
        self.jobs[job.id] = changed
        self.changed.notify_all()
        return changed

    def next_retry(self) -> float | None:
        """When the next job goes on after a temporary failure."""
        waiting = (job.id for job in self.jobs.values() if job.status is JobStatus.TEMP_FAILED)
        return min((self.retry_at[name] for name in waiting if name in self.retry_at), default=None)
