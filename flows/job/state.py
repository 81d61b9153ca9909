"""The state of a job as shown: Prefect's state of its run, combined with the job's lock."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

TAKEN_UP = timedelta(minutes=2)
"""A run that a worker took holds its job's lock within this time. If it does not, its process is gone."""


class JobState(StrEnum):
    """The states of a job as shown."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    DECIDED = "decided"
    """A person decided in the Prefect UI; a command must continue the job, because no worker runs it."""


def job_state(run: Mapping[str, Any], *, held: bool) -> JobState:
    """Return the state of a job as shown. ``held``: a process holds the job's lock."""
    waits = bool((run.get("labels") or {}).get("job.waiting"))
    # A job still waits if it was killed after it recorded a wait and before it was parked, or resumed without a worker.
    cut_off = JobState.WAITING if waits else JobState.INTERRUPTED
    match run.get("state_type"):
        case "COMPLETED":
            return JobState.COMPLETED
        case "FAILED":
            return JobState.FAILED
        case "CANCELLED":
            return JobState.CANCELLED
        case "PAUSED" if waits:
            return JobState.WAITING
        case _ if held:
            return JobState.RUNNING
        case "CRASHED" if run.get("state_name") != "Stopped":
            return cut_off
        case "PAUSED" | "CRASHED":  # suspended by a person, or stopped by a signal
            return JobState.STOPPED
        case "CANCELLING":
            return JobState.CANCELLED
    # A worker begins a run that has a deployment. A run that a command created and left is interrupted.
    waits_for_worker = run.get("state_type") == "SCHEDULED" or since(run) < TAKEN_UP
    if not run.get("deployment_id") or not waits_for_worker:
        return cut_off
    return JobState.RUNNING if run.get("state_type") == "RUNNING" else JobState.PENDING


def since(run: Mapping[str, Any]) -> timedelta:
    """Return how long a run has been in its state."""
    stamp = (run.get("state") or {}).get("timestamp")
    return datetime.now(UTC) - datetime.fromisoformat(str(stamp)) if stamp else timedelta(0)
