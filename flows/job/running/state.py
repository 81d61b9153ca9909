"""The state of a job as shown: Prefect's state of its run, combined with the job's lock.

A job whose machine died between a decision and the continuation is ``interrupted``, not ``waiting``: there is nothing
left to decide, and scripts continue interrupted jobs.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from flows.engine.api import Json
from flows.job.running.lock import is_held, last_holder

TAKEN_UP = timedelta(minutes=10)
"""Limit for a run to be Pending in Prefect while a worker starts it. After that, its machine is gone."""


HANDOVER = timedelta(seconds=10)
"""Limit for a worker's run to be Running without the lock: before taking it and after releasing it."""


class JobState(StrEnum):
    """The states of a job as shown (``4-product.md`` §4)."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"


def job_state(run: Json, directory: str | None) -> JobState:
    """Return the state of a job as shown. A run recorded as running whose lock is free is ``interrupted``."""
    kind, name = run.get("state_type"), run.get("state_name")
    held = directory is not None and is_held(Path(directory))
    match kind:
        case "COMPLETED":
            return JobState.COMPLETED
        case "FAILED":
            return JobState.FAILED
        case "CANCELLED":
            return JobState.CANCELLED
        case "PAUSED":
            labels: Json = run.get("labels") or {}
            if labels.get("job.waiting") or not labels.get("job.steps"):
                return JobState.WAITING
            return JobState.RUNNING if held else JobState.STOPPED  # not parked, but suspended by a person
        case "CRASHED" if name == "Stopped":
            return JobState.STOPPED
        case "CRASHED" | "RUNNING":  # a worker may report the end of a run that another machine continues
            return JobState.RUNNING if held or _handing_over(run, directory) else JobState.INTERRUPTED
        case "CANCELLING":
            return JobState.RUNNING if held else JobState.CANCELLED
    if held:
        return JobState.RUNNING
    # Only a deployment's worker would start a run; a run created by a command that has ended is interrupted.
    if not run.get("deployment_id") or (kind == "PENDING" and _since(run) > TAKEN_UP):
        return JobState.INTERRUPTED
    return JobState.PENDING


def _handing_over(run: Json, directory: str | None) -> bool:
    """Return whether a worker's run is about to take its job's lock, or has just released it."""
    if run.get("state_type") != "RUNNING" or not run.get("deployment_id"):
        return False  # a command takes the lock first, and releases it last
    for_so_long = _since(run)
    last = last_holder(Path(directory)) if directory is not None else None
    ago = for_so_long if last is None else datetime.now(UTC) - last.when
    return not died_with_lock(run, directory) and min(ago, for_so_long) < HANDOVER


def died_with_lock(run: Json, directory: str | None) -> bool:
    """Return whether a run whose lock is free took the lock after its last change of state and never gave it back.

    A run that begins has not taken it yet: a process named in the lock file then belongs to the previous run.
    """
    last = last_holder(Path(directory)) if directory is not None else None
    return last is not None and last.holder is not None and datetime.now(UTC) - last.when <= _since(run)


def _since(run: Json) -> timedelta:
    """Return how long a run has been in its state; clocks may differ by seconds."""
    state: Json = run.get("state") or {}
    stamp = state.get("timestamp")
    return datetime.now(UTC) - datetime.fromisoformat(str(stamp)) if stamp else timedelta(0)
