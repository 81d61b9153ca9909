"""Remove jobs (``job delete``, ``job prune``): first the files, which are patient data, last the record.

A removal that was interrupted can be repeated: the record stays until all files are gone.
"""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

from flows.job.directory import JobDirectory
from flows.job.find import Session
from flows.job.lock import JobBusyError, job_lock
from flows.job.record import JobRecord
from flows.job.state import JobState
from flows.prefect.artifacts import delete_run

IN_WORK = frozenset({JobState.PENDING, JobState.RUNNING, JobState.WAITING, JobState.DECIDED})
"""States of jobs that are never removed."""


def old_jobs(session: Session, older_than: timedelta) -> list[JobRecord]:
    """Return the jobs that are not in work and have not changed for ``older_than``, newest first."""
    before = datetime.now(UTC) - older_than
    return [
        record
        for record in session.jobs()
        if record.state not in IN_WORK and datetime.fromisoformat(record.updated or record.created or "") < before
    ]


def remove(session: Session, job_id: str) -> None:
    """Remove a job's directory, then its record. The record stays if a file cannot be removed.

    Raises ``JobBusyError`` if the job runs or waits, ``InputError`` if it is unknown, and ``StorageError``.
    """
    directory = JobDirectory.of(session.jobs_dir, job_id)
    with job_lock(directory.path) if directory.path.is_dir() else nullcontext():
        record = session.job(job_id)  # under the lock: a command may have continued the job meanwhile
        if record.state in IN_WORK:
            raise JobBusyError(
                "job-in-work", f"the job is {record.state.value}, so it is not removed", context=job_id,
                hint="stop it or decide it first, or cancel it in the Prefect UI",
            )  # fmt: skip
        directory.clear()
        delete_run(session.api, job_id)
    shutil.rmtree(directory.path, ignore_errors=True)  # only the lock file is left
