"""``job unfinished``: the jobs that did not finish, and the runs that did not begin; the look of every morning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from config import ConfigError
from flows.commands.continue_job import Asked, go_on
from flows.commands.status import hint_anywhere, how_to_go_on
from flows.gate.decisions import as_decided
from flows.job.record import JobRecord
from flows.job.running.lock import JobBusyError
from flows.job.running.state import JobState
from flows.job.running.sweep import BEHIND, late, notice, was_cut_off
from flows.job.session import has_any_job, opened
from flows.jobs_dir import load
from flows.output import one_line, say
from tasks.shared.errors import SluiceError

OPEN = (JobState.INTERRUPTED, JobState.STOPPED, JobState.FAILED, JobState.WAITING)


def unfinished(configs: Sequence[str], *, go: bool) -> int:
    """Name what needs a person, in each jobs directory; with ``go``, continue first what was cut off.

    Exit code 1 when something is left for a person; an error in one of them does not keep the others from their turn.
    """
    code = 0
    told: set[str] = set()
    for config in configs:
        code |= _code_of(partial(_in_one, config, go=go, told=told))
    return code


def _code_of(work: Callable[[], int]) -> int:
    """Return 0 or 1. An error is printed and counts as 1; a job that another process runs by now is no error."""
    try:
        return min(1, work())
    except JobBusyError:
        return 0
    except (ConfigError, SluiceError) as error:
        say(error.render() if isinstance(error, SluiceError) else str(error), err=True)
        return 1


def _in_one(config: str, *, go: bool, told: set[str]) -> int:
    loaded = load(config)
    if not has_any_job(loaded):
        return 0
    with opened(loaded) as session:
        notice(session.api, hint_anywhere)
        cut = {str(run["id"]) for run in session.api.runs(states=("CRASHED",)) if was_cut_off(run, JobRecord.of(run))}
        known = [as_decided(session, record) for record in session.jobs() if record.id not in told]
        records = [record for record in known if record.state in OPEN]
        overdue = [run for run in late(session.api) if str(run["id"]) not in told]
    code = 0
    for record in records:
        told.add(record.id)
        if go and (record.state is JobState.INTERRUPTED or record.id in cut):
            code |= _code_of(partial(go_on, Asked(record.config or config, record.id, progress=False)))
            continue
        reason = f": {one_line(record.error.message)}" if record.error and record.state is JobState.FAILED else ""
        say("\n".join([f"job {record.id} is {record.state.value}{record.at}{reason}", *how_to_go_on(record, config)]))
        code = 1
    for run in overdue:
        told.add(str(run["id"]))
        behind = run.get("state_name") == BEHIND
        why = "it waits until another run of its deployment is over" if behind else "no worker has taken it up"
        say(f"run {run['id']} does not run: it was due at {run.get('expected_start_time')}, and {why}")
        code = 1
    return code
