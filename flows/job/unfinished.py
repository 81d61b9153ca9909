"""Find jobs that were cut off, and put those of a schedule back to their worker (``job unfinished``).

Prefect shows a run whose process died as running for ever, or as pending if its worker died while it took the run, and
such a run holds its place in a work queue. It was cut off if it has been in that state for two minutes, is not at a
wait, and its lock is free. Its old start time puts it before the runs that were scheduled later.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from flows.job.find import Session
from flows.job.lock import JobBusyError, JobLock
from flows.job.record import JobRecord, continue_hint
from flows.job.state import TAKEN_UP, JobState, since
from flows.prefect.api import Json, PrefectApi
from tasks.shared.errors import StorageError

AT_MOST = 3
"""Times that a job goes on without a person: the cause of its end may recur."""

CONTINUED = "job.continued"
"""The label that counts them."""


@dataclass(frozen=True)
class CutOff:
    """A job whose process is gone, and how often it went on without a person."""

    run: Json
    record: JobRecord
    times: int

    @property
    def goes_on(self) -> bool:
        """Return whether a worker may take it again without a person."""
        return bool(self.run.get("auto_scheduled")) and self.times < AT_MOST

    def put_back(self, api: PrefectApi) -> bool:
        """Put the run back to the workers of its deployment; return whether this was done.

        The lock is held meanwhile, and the state is read again under it: a run that begins is left alone.
        """
        try:
            with JobLock(Path(self.record.directory)) if self.record.directory else nullcontext():
                now = api.read_run(self.record.id)
                if now is None or now["state_id"] != self.run["state_id"]:
                    return False
                api.set_labels(self.record.id, {CONTINUED: self.times + 1})
                first = self.run.get("start_time") or self.run.get("expected_start_time")
                state = {
                    "type": "SCHEDULED", "name": "AwaitingRetry", "message": "goes on after it was cut off",
                    "state_details": {"scheduled_time": first},
                }  # fmt: skip
                api.request("POST", f"/flow_runs/{self.record.id}/set_state", {"state": state, "force": True})
                return True
        except (JobBusyError, StorageError):  # another process has it, or this machine does not see its directory
            return False


def cut_off(session: Session) -> list[CutOff]:
    """Return the jobs of this jobs directory that were cut off, newest first."""
    found = [(run, JobRecord.of(run)) for run in session.runs(states=("RUNNING", "PENDING", "CRASHED"))]
    return [
        CutOff(run, record, int((run.get("labels") or {}).get(CONTINUED) or 0))
        for run, record in found
        if record.state is JobState.INTERRUPTED and since(run) > TAKEN_UP
    ]


def look(session: Session, *, go: bool) -> Iterator[str]:
    """Yield a line for each job that was cut off; with ``go``, those of a schedule go on with their worker."""
    for one in cut_off(session):
        step = one.record.current_step
        what = f"job {one.record.id} was interrupted" + (f" at {step}" if step else "")
        if go and one.goes_on and one.put_back(session.api):
            yield f"{what}; its worker goes on with it"
        else:
            yield f"{what}\n{continue_hint(one.record)}"
