"""``job delete`` and ``job prune``: removing jobs, directory first, record last.

What lies in a job's directory is data of patients (``docs/operating.md``): it should not stay for ever because nobody
thought of it. A job that runs, waits, or is still to be taken up by a worker is never pruned.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from config import load_config
from flows.directory import JobDirectory
from flows.lock import JobBusyError, JobLock
from flows.output import say
from flows.record import JobRecord, JobState
from flows.session import Session, dump, has_any_job, opened
from flows.watch import human_bytes
from tasks.shared.errors import InputError

PRUNED = frozenset({JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED, JobState.STOPPED, JobState.INTERRUPTED})
"""States in which a job may be old. Waiting, running and pending jobs are somebody's work in progress."""


def delete(config: str, job_id: str, overrides: Sequence[str]) -> int:
    """Remove a job's directory, then its record. Refused while it runs."""
    with opened(load_config(Path(config), overrides=overrides)) as session:
        record = session.job(job_id)
        directory = JobDirectory.of(session.jobs_dir, record.id)
        if directory.path.exists():
            with JobLock(directory.path):
                _remove(session, directory)
        elif record.state is JobState.RUNNING:
            raise InputError("job-state", "the job is running", context=record.id, hint="cancel it first")
        else:
            session.api.delete_run(record.id)
        say(f"job {record.id} is deleted")
    return 0


def prune(config: str, older_than: timedelta, overrides: Sequence[str], *, dry_run: bool, as_json: bool) -> int:
    """Remove every job that nothing happened to for longer than ``older_than``; says which and how large they are."""
    loaded = load_config(Path(config), overrides=overrides)
    gone: list[dict[str, object]] = []
    if has_any_job(loaded):
        before = datetime.now(UTC) - older_than
        with opened(loaded) as session:
            for record in session.jobs():
                directory = JobDirectory.of(session.jobs_dir, record.id)
                size = _size(directory.path)
                if _old(record, before) and (dry_run or _pruned(session, directory, before)):
                    gone.append(
                        {"id": record.id, "state": record.state.value, "updated": record.updated, "bytes": size}
                    )
                    if not as_json:
                        say(f"job {record.id}  {record.state}  {human_bytes(size)}")
    total = sum(int(str(job["bytes"])) for job in gone)
    if as_json:
        say(dump(gone))
    else:
        say(f"{len(gone)} jobs, {human_bytes(total)} {'would be' if dry_run else 'are'} deleted")
    return 0


def _old(record: JobRecord, before: datetime) -> bool:
    updated = record.updated or record.created
    return record.state in PRUNED and updated is not None and datetime.fromisoformat(updated) < before


def _pruned(session: Session, directory: JobDirectory, before: datetime) -> bool:
    """Remove one job; False when somebody has taken it up since it was listed."""
    if not directory.path.exists():
        session.api.delete_run(directory.path.name)
        return True
    try:
        with JobLock(directory.path):
            # As it is now that nobody else can change it; the lock this process holds does not make it running.
            run = session.api.read_run(directory.path.name)
            if run is not None and not _untouched(run, before):
                return False
            _remove(session, directory)
    except JobBusyError:
        return False
    return True


def _untouched(run: dict[str, object], before: datetime) -> bool:
    updated = run.get("updated")
    return run.get("state_type") != "PAUSED" and updated is not None and datetime.fromisoformat(str(updated)) < before


def _remove(session: Session, directory: JobDirectory) -> None:
    directory.delete()
    session.api.delete_run(directory.path.name)


def _size(directory: Path) -> int:
    """Bytes of a job's files; one that vanishes meanwhile counts as nothing."""
    size = 0
    for place, _, names in os.walk(directory):
        for name in names:
            try:
                size += os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118 - os.walk gives text
            except FileNotFoundError:
                continue
    return size
