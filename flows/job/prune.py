"""Remove jobs (``job delete``, ``job prune``): first the files in the directory, last the record.

A job's directory holds patient data (``docs/job-directory.md``) and should not be kept without need. A job that runs,
waits, or is due for a worker is never pruned. An interrupted removal is continued by the next one: the record stays
until all data is removed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from flows.engine.flow_runs import delete_runs
from flows.job.directory import JobDirectory
from flows.job.record import JobRecord
from flows.job.running.lease import Lease, lease_api
from flows.job.running.lock import LOCK, JobBusyError, JobLock, named_elsewhere
from flows.job.running.proof import HEARTBEAT, LeaseTakenError
from flows.job.running.state import JobState
from flows.job.session import Session, has_any_job, opened
from flows.job.which import directories
from flows.jobs_dir import load
from flows.output import print_json, print_line
from flows.shell import about
from tasks.shared.errors import StorageError
from tasks.shared.stop import Stop
from tasks.shared.units import human_bytes
from tasks.shared.work import for_each, in_order

BATCH = 25
"""Jobs that are locked, looked at and removed together: one request for all of them where Prefect has one."""

AT_ONCE = 4
"""Batches."""

SAY_EVERY = 5.0
"""Seconds between two words on how far it is."""

PRUNED = frozenset({JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED, JobState.STOPPED, JobState.INTERRUPTED})
"""States in which a job may be old. Waiting, running and pending jobs are work in progress."""


def delete(config: str, job_id: str, overrides: Sequence[str]) -> int:
    """Remove a job's directory and record; also a directory that lost its record.

    Raises:
        InputError: the job does not exist.
        JobBusyError: it runs, here or on another machine.
        StorageError: something in its directory cannot be removed; the record stays.
    """
    with opened(load(config, overrides), job_id) as session:
        job_id = session.find(job_id)
        directory = JobDirectory.of(session.jobs_dir, job_id)
        recorded = session.api.read_run(job_id) is not None or not directory.path.is_dir()
        if recorded:
            session.job(job_id)
        with held(session, directory):
            _remove(session, directory)
        directory.delete()
        print_line(
            f"job {job_id} is deleted"
            if recorded
            else f"the directory of job {job_id}, which has no record, is deleted"
        )
    return 0


def prune(config: str, older_than: timedelta, overrides: Sequence[str], *, dry_run: bool, as_json: bool) -> int:
    """Remove every job unchanged for longer than ``older_than``, and print each job with its size.

    Directories without a record are reported and left alone: their record may be at another Prefect API. Return 1 if
    something could not be removed; the next call tries again.
    """
    loaded = load(config, overrides)
    gone: list[dict[str, object]] = []
    problems: list[StorageError] = []
    if has_any_job(loaded):
        before = datetime.now(UTC) - older_than
        with opened(loaded) as session:
            records = session.jobs()
            old = [record for record in records if _old(record, before)]
            _refuse_empty(session, old)
            shown = _PruneProgress(len(old))

            def record_pruned(found: Pruned | StorageError) -> None:
                if isinstance(found, StorageError):
                    _report_problem(found, problems)
                    return
                record, size = found
                gone.append({"id": record.id, "state": record.state.value, "updated": record.updated, "bytes": size})
                if not as_json:
                    print_line(f"job {record.id}  {record.state}  {human_bytes(size)}")
                shown.gone(len(gone))

            if dry_run:
                for record in old:
                    record_pruned((record, _size(JobDirectory.of(session.jobs_dir, record.id).path)))
            else:
                _remove_all(session, old, before, record_pruned)
            _report_unrecorded(session, (record.id for record in records), before, problems, dry_run=dry_run)
    total = sum(int(str(job["bytes"])) for job in gone)
    if as_json:
        print_json(gone)
    else:
        print_line(f"{len(gone)} jobs, {human_bytes(total)} {'would be' if dry_run else 'are'} deleted")
    return 1 if problems else 0


def _report_problem(problem: StorageError, problems: list[StorageError]) -> None:
    problems.append(problem)
    print_line(problem.render(), err=True)


def _old(record: JobRecord, before: datetime) -> bool:
    updated = record.updated or record.created
    return record.state in PRUNED and updated is not None and datetime.fromisoformat(updated) < before


def _refuse_empty(session: Session, old: Iterable[JobRecord]) -> None:
    """Refuse to prune if no job has a directory: their file system may not be mounted.

    Raises:
        StorageError: records name directories, and there is not one directory of a job.
    """
    if any(record.directory for record in old) and not any(directories(session.jobs_dir)):
        raise StorageError(
            "jobs-dir-empty", "the jobs directory has no directory of a job, but there are records of jobs in it",
            context=str(session.jobs_dir),
            hint="is its file system mounted? If the directories are gone for good, remove each job: "
            + about("job delete", "JOB"),
        )  # fmt: skip


Pruned = tuple[JobRecord, int]
"""A job that is gone, and the bytes of its files."""


class _PruneProgress:
    """Print the progress of a prune on stderr if it takes long."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._next = time.monotonic() + SAY_EVERY

    def gone(self, count: int) -> None:
        """Report that ``count`` jobs are removed."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + SAY_EVERY
            print_line(f"{count} of {self._total} jobs", err=True)


def _remove_all(
    session: Session, old: Sequence[JobRecord], before: datetime, take: Callable[[Pruned | StorageError], None]
) -> None:
    """Remove these jobs, several batches at once; pass each removed job, or its error, to ``take``."""

    def work(batch: Sequence[JobRecord]) -> list[Pruned | StorageError]:
        told: list[Pruned | StorageError] = []
        _remove_batch(session, batch, before, told.append)
        return told

    batches = (old[first : first + BATCH] for first in range(0, len(old), BATCH))
    for told in in_order(batches, work, threads=AT_ONCE, stop=Stop()):
        for one in told:
            take(one)


def _remove_batch(
    session: Session, batch: Sequence[JobRecord], before: datetime, tell: Callable[[Pruned | StorageError], None]
) -> None:
    """Remove the jobs whose locks are free, except those taken up or removed since they were listed."""
    gone: list[tuple[JobRecord, int, JobDirectory]] = []
    with ExitStack() as locks:
        mine: dict[str, JobDirectory] = {}
        unlocked: list[StorageError] = []

        def lock(record: JobRecord, _: Stop) -> None:
            directory = JobDirectory.of(session.jobs_dir, record.id)
            try:
                locks.enter_context(held(session, directory))
                mine[record.id] = directory
            except JobBusyError:
                pass
            except StorageError as error:
                unlocked.append(error)

        # Each lock of a dead machine takes a minute: take all of these at once first, before locking the other jobs.
        dead = {one.id for one in batch if named_elsewhere(JobDirectory.of(session.jobs_dir, one.id).path)}
        for_each([record for record in batch if record.id in dead], lock, threads=len(dead), stop=Stop())
        for_each([record for record in batch if record.id not in dead], lock, threads=1, stop=Stop())
        for error in unlocked:
            tell(error)
        # Read them again now that they are locked; the locks of this process do not make them running.
        for run in session.api.runs(list(mine)) if mine else ():
            record = JobRecord.of(run)
            if not _old(record, before):
                continue
            directory = mine[record.id]
            size = _size(directory.path)
            try:
                directory.clear()
            except StorageError as error:
                tell(error)
            else:
                gone.append((record, size, directory))
        delete_runs(session.api, [record.id for record, _, _ in gone])
    for record, size, directory in gone:
        try:
            directory.delete()
        except StorageError as error:
            tell(error)
        else:
            tell((record, size))


@contextmanager
def held(session: Session, directory: JobDirectory) -> Iterator[None]:
    """Hold a job's lock, or only the lease if the job has no directory.

    Raises:
        JobBusyError: another process has it.
    """
    job = directory.path.name
    with ExitStack() as stack:
        if directory.path.is_dir():
            try:
                stack.enter_context(JobLock(directory.path))
            except StorageError as error:
                if error.reference != "file-vanished":
                    raise
                raise JobBusyError("job-busy", "the job is being deleted by another process", context=job) from None
        elif (address := lease_api(session.jobs_dir)) is not None:
            lease = Lease(address, job)
            try:
                lease.acquire().hold()
            except LeaseTakenError:
                raise JobBusyError(
                    "job-busy", "the job is being run by another process (on another machine)", context=job,
                    hint="wait for it; after a crash of its machine try again in a minute",
                ) from None  # fmt: skip
            stack.callback(lease.release)
        # Else the API is this machine's alone, and here the job has nothing that could be locked.
        yield


def _remove(session: Session, directory: JobDirectory) -> None:
    """Remove the files in the directory, then the record, then the lock file once the lock is free."""
    directory.clear()
    delete_runs(session.api, [directory.path.name])


def _report_unrecorded(
    session: Session, known: Iterable[str], before: datetime, problems: list[StorageError], *, dry_run: bool
) -> None:
    """Report directories of jobs without a record at this Prefect API: no list shows their data.

    A directory with nothing but a lock is left from an interrupted removal and is removed; errors are added to
    ``problems``.
    """
    ids = set(known)
    for path in directories(session.jobs_dir):
        if path.name in ids or session.api.read_run(path.name) is not None:
            continue
        try:
            rest = {entry.name for entry in path.iterdir()} <= {LOCK, HEARTBEAT}
            if rest and not dry_run:
                with held(session, JobDirectory(path)):
                    pass
                JobDirectory(path).delete()
            elif not rest and datetime.fromtimestamp(path.stat().st_mtime, UTC) < before:
                size = human_bytes(_size(path))
                print_line(f"warning: {path} has no record at this Prefect API and is left alone, {size}", err=True)
                print_line(f"hint: {about('job delete', path.name)}", err=True)
        except (FileNotFoundError, JobBusyError):
            continue  # another process removes it
        except StorageError as error:
            _report_problem(error, problems)
        except PermissionError:
            print_line(f"warning: {path} has no record at this Prefect API, cannot be read and is left alone", err=True)


def _size(directory: Path) -> int:
    """Return the bytes of a job's files; a file that vanishes or is not readable counts as 0."""
    size = 0
    for place, _, names in os.walk(directory):
        for name in names:
            try:
                size += os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118 - os.walk gives text
            except (FileNotFoundError, PermissionError):
                continue
    return size
