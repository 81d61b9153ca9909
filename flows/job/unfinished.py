"""Find jobs that were cut off, and put those of a schedule back to their worker (``job unfinished``).

Prefect shows a run whose process died as running forever, or as pending if its worker died while it took the run. Such
a run keeps its place in a work queue. A job was cut off if its run has been in that state for two minutes, the job is
not at a wait, and its lock is free. A run that is put back keeps its scheduled time, so it runs before later ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from flows.job.find import Session
from flows.job.lock import JobBusyError, job_lock
from flows.job.record import JobRecord, continue_hint
from flows.job.state import TAKEN_UP, JobState, since
from flows.prefect.api import Json, PrefectApi
from tasks.shared.errors import StorageError

AT_MOST = 3
"""Times that a job is put back. If it is cut off more often, a person must find the cause."""

CONTINUED = "job.continued"
"""The label with the number of times that the job was put back."""


def put_back(api: PrefectApi, run: Json, record: JobRecord) -> bool:
    """Put a scheduled run back to the workers of its deployment; return whether this was done.

    The job's lock is held meanwhile, and the run's state is read again: a run that has begun is left alone.
    """
    times = int((run.get("labels") or {}).get(CONTINUED) or 0)
    if not run.get("auto_scheduled") or times >= AT_MOST:
        return False
    state = {
        "type": "SCHEDULED", "name": "AwaitingRetry", "message": "continued after it was cut off",
        "state_details": {"scheduled_time": run["expected_start_time"]},
    }  # fmt: skip
    try:
        with job_lock(Path(record.directory)) if record.directory else nullcontext():
            now = api.read_run(record.id)
            if now is None or now["state_id"] != run["state_id"]:
                return False
            api.set_labels(record.id, {CONTINUED: times + 1})
            api.request("POST", f"/flow_runs/{record.id}/set_state", {"state": state, "force": True})
            return True
    except (JobBusyError, StorageError):  # another process runs the job, or its directory is not on this machine
        return False


def look(session: Session, *, go: bool) -> Iterator[str]:
    """Yield a line for each job that was cut off. With ``go``, put those of a schedule back to their worker."""
    for run in session.runs(("RUNNING", "PENDING", "CRASHED")):
        record = JobRecord.of(run)
        if record.state is not JobState.INTERRUPTED or since(run) <= TAKEN_UP:
            continue
        step = record.current_step
        what = f"job {record.id} was interrupted" + (f" at {step}" if step else "")
        if go and put_back(session.api, run, record):
            yield f"{what}; its worker goes on with it"
        else:
            yield f"{what}\n{continue_hint(record)}"
