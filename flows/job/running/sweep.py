"""Correct Prefect's state of runs whose process is gone, and continue jobs of a schedule.

``4-product.md`` §4: an interrupted job is recorded as running, but its lock is free. Prefect would show such a run as
Running for ever. It becomes Crashed, with the name ``Interrupted`` and the command that continues it, or Cancelled if
it was cancelled. A worker sweeps at its start and every minute, a command when it lists jobs.

Only a process that sees the job's directory judges its run. ``how_long_watched`` alone decides whether the process is
gone; the sweep takes the job's lock first and checks again, so no run that begins is hit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from flows.engine.api import Json, PrefectApi
from flows.job.record import JobRecord, hint_anywhere
from flows.job.running import lock
from flows.job.running.lock import JobBusyError, JobLock
from flows.job.running.state import TAKEN_UP, JobState, died_with_lock
from flows.job.writer import RecordWriter
from tasks.shared.errors import SluiceError, StorageError
from tasks.shared.stop import Stop
from tasks.shared.work import in_order

EVERY = 60.0
"""Seconds between two sweeps of a worker."""

WATCHED = 60.0
"""Seconds without a sign of life, by the observer's clock, if the lock proves nothing: one whole lease."""

AT_ONCE = 8
"""Locks of dead machines that are waited for together."""

FRESH = timedelta(days=3)
"""Time after its start at which a scheduled job is still continued without a person; later only reported."""

AT_MOST = 3
"""Times one job is continued without a person: the cause of its end may recur."""

Unfinished = Literal["continue", "tell"]

OPEN = ("RUNNING", "CANCELLING", "PENDING")
CONTINUED = "job.continued"


class Sweep:
    """Sweep of one Prefect API. Each turn builds on earlier ones; after a failed turn, watching starts again.

    Only a sweep that ``waits`` judges jobs of machines whose lease must be watched: their locks take a minute. It
    continues the unfinished jobs of one work ``pool`` and only reports those of other workers.
    """

    def __init__(
        self,
        api: PrefectApi,
        *,
        waits: bool = True,
        pool: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._waits = waits
        self._pool = pool
        self._clock = clock
        self._watched: dict[str, tuple[str, float]] = {}
        self._told: set[tuple[str, str]] = set()
        self._looked: float | None = None

    def run_once(self, unfinished: Unfinished | None = None) -> Iterator[str]:
        """Correct the runs proved dead by now; then ``continue`` or report the scheduled jobs that were cut off.

        Yields each finding or action in words for a person. Raises ``SluiceError`` when the API does not answer.
        """
        now = self._clock()
        if self._looked is not None and now - self._looked > 3 * EVERY:
            self._watched.clear()  # a gap between sweeps does not prove silence
        watched, self._watched = self._watched, {}
        dead = [run for run in self._api.runs(states=OPEN) if self._proved(run, watched, now)]
        for noticed in in_order(dead, self._put_right, threads=AT_ONCE, stop=Stop()):
            if noticed is not None:
                yield noticed
        self._looked = now
        if unfinished is not None:
            yield from self._unfinished(unfinished)

    def _proved(self, run: Json, watched: dict[str, tuple[str, float]], now: float) -> bool:
        """Return whether it is time to take the lock of a run's job."""
        record = JobRecord.of(run)
        if record.state in {JobState.RUNNING, JobState.PENDING}:
            return False
        needed = how_long_watched(run, record)
        if needed is None or (not self._waits and record.directory and lock.named_elsewhere(Path(record.directory))):
            return False
        # A live process writes into the record: that changes the run, and the watch starts over.
        sign = f"{state_id(run)} {run.get('updated')}"
        seen, since = watched.get(record.id, (sign, now))
        if seen != sign:
            since = now
        if now - since < needed:
            self._watched[record.id] = (sign, since)
            return False
        return True

    def _put_right(self, run: Json) -> str | None:
        record = JobRecord.of(run)
        cancelled = run.get("state_type") == "CANCELLING"
        message = f"interrupted{record.at}: the process that ran it is gone\n{hint_anywhere(record)}"

        def put_right() -> None:
            if cancelled:
                self._api.set_state(record.id, "CANCELLED", message="cancelled; the process that ran it is gone")
            else:
                self._api.set_state(record.id, "CRASHED", name="Interrupted", message=message)

        if not self._alone(run, record, put_right):
            return None
        return f"job {record.id}: {'cancelled' if cancelled else message}"

    def _alone(self, run: Json, record: JobRecord, change: Callable[[], None]) -> bool:
        """Change a run while holding its job's lock, unless its state has changed. Return whether it was changed."""
        try:
            with _nobody_else(record):
                again = self._api.read_run(record.id)
                if again is None or state_id(again) != state_id(run):
                    return False
                change()
        except (JobBusyError, StorageError):
            return False
        return True

    def _unfinished(self, how: Unfinished) -> Iterator[str]:
        for run in self._api.runs(states=("CRASHED",), after=datetime.now(UTC) - FRESH):
            record = JobRecord.of(run)
            if not was_cut_off(run, record) or run.get("work_pool_name") != self._pool:
                continue
            times = int((run.get("labels") or {}).get(CONTINUED) or 0)
            if how == "continue" and times < AT_MOST:
                if self._continued(run, record, times + 1):
                    yield f"job {record.id}: was {record.state.value}, and is continued"
            elif (record.id, state_id(run)) not in self._told:
                self._told.add((record.id, state_id(run)))
                often = f" (it was continued {times} times)" if times >= AT_MOST else ""
                yield f"job {record.id}: is {record.state.value}{record.at}{often}\n{hint_anywhere(record)}"

    def _continued(self, run: Json, record: JobRecord, times: int) -> bool:
        # os.path, not Path: a directory above that may not be entered is an answer here, no exception.
        if record.directory is not None and not os.path.isdir(record.directory):  # noqa: PTH112
            return False  # another machine's, or another user's, which this one does not see

        def go_on() -> None:
            RecordWriter(self._api, record.id).set(continued=times)
            self._api.set_state(record.id, "SCHEDULED", name="Continuing")

        return self._alone(run, record, go_on)


def how_long_watched(run: Json, record: JobRecord) -> float | None:
    """Return how many seconds a run must show no sign of life before its process counts as gone.

    ``None``: it cannot be judged from here. A process of this machine without the lock is gone at once: the kernel
    released it. A process of another machine with a lease is watched while taking the lock. A lock from an earlier run
    proves nothing: a worker's run may still be starting.
    """
    if record.directory is None:
        return TAKEN_UP.total_seconds()  # it ended before it had one: no lock to check
    last = lock.last_holder(Path(record.directory))
    if last is None:
        return None
    holder = last.holder
    soon = holder is not None and (holder.machine == lock.this_machine() or holder.limit is not None)
    begins = run.get("state_type") in {"PENDING", "RUNNING"} and bool(run.get("deployment_id"))
    return 0.0 if soon and (died_with_lock(run, record.directory) or not begins) else WATCHED


def _nobody_else(record: JobRecord) -> JobLock | nullcontext[None]:
    """Return the job's lock, which every new run needs; nothing without a directory."""
    return nullcontext() if record.directory is None else JobLock(Path(record.directory), judges=True)


def was_cut_off(run: Json, record: JobRecord) -> bool:
    """Return whether a scheduled job ended but was not stopped: its process died, or its worker was ended."""
    if not run.get("auto_scheduled"):
        return False
    return record.state is JobState.INTERRUPTED or (record.state is JobState.STOPPED and record.stopped_by == "SIGTERM")


def state_id(run: Json) -> str:
    """Return an id that differs between two states of a run, even of the same name."""
    return str((run.get("state") or {}).get("id"))


def notice(api: PrefectApi) -> None:
    """Sweep once for a command, correcting only runs proved dead at once. A failure does not fail the command."""
    try:
        for _ in Sweep(api, waits=False).run_once():
            pass
    except SluiceError:
        return
