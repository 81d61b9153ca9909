"""``pipeline status`` and ``job list``: the record as a person or a script reads it. Never imports Prefect."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path

from flows.gate.sight import where_to_look
from flows.job.directory import JobDirectory
from flows.job.record import JobRecord
from flows.job.running.lock import last_sign
from flows.job.running.state import JobState
from flows.job.running.sweep import notice
from flows.job.session import has_any_job, opened
from flows.jobs_dir import load
from flows.output import one_line, say, say_json, write
from flows.shell import about, command
from tasks.shared.report import ON_DEMAND
from tasks.shared.units import human_seconds


def show(config: str, job_id: str, *, overrides: Sequence[str], as_json: bool, watch: bool) -> int:
    """Print one job's status; with ``watch`` until it neither runs nor is pending."""
    from flows.gate.decisions import as_decided

    with opened(load(config, overrides), job_id) as session:
        job_id = session.find(job_id)
        while True:
            record = as_decided(session, _as_left(session.job(job_id)))
            if record.state in {JobState.INTERRUPTED, JobState.CANCELLED}:
                notice(session.api, hint_anywhere)  # Prefect may still show it as running
            if not as_json and watch:
                write("\x1b[2J\x1b[H")
            if as_json:
                say_json(record.status())
            else:
                say(text(record, config))
            if not watch or record.state not in {JobState.RUNNING, JobState.PENDING}:
                return 0
            time.sleep(2)


def text(record: JobRecord, config: str | None = None) -> str:
    """A job's status for a person, who asked with ``config``."""
    lines = [f"job {record.id}: {record.state.value}{_since(record)}"]
    for step in record.steps:
        detail = step.summary() if step.state == "completed" else ""
        lines.append(f"  {step.position} {step.name}: {step.state}" + (f": {detail}" if detail else ""))
    if record.progress and record.progress.message:
        lines.append(f"  {record.progress.message}")
    if waiting := record.undecided:
        lines += [f"waits at step {waiting.position} for approval", *where_to_look(waiting)]
    for position, approval in record.decisions:
        lines.append(f"  step {position} was {approval.told(one_line)}")
    if record.error and record.state in {JobState.FAILED, JobState.CANCELLED}:
        error = record.error
        lines.append(f"error[{error.reference}]: {error.message}")
        lines += [f"  {error.context}"] if error.context else []
        lines += [f"hint: {error.hint}"] if error.hint else []
    if record.extraction.job_id:
        lines.append(f"extraction {record.extraction.job_id}")
    if record.directory:
        lines.append(f"directory {record.directory}")
    if record.page is not None:
        lines.append(f"release report {record.page}")
    elif record.shown_at_the_end is not None and record.shown_at_the_end.on_demand:
        lines.append(f"release report: {ON_DEMAND}; to make one: {about('job report', record.id)}")
    if record.released_in_vain:
        lines.append("nobody goes on with it by itself: a command started it, and workers take up runs of deployments")
    if record.state in {JobState.WAITING, JobState.FAILED, JobState.STOPPED, JobState.INTERRUPTED}:
        lines += how_to_go_on(record, config)
    return "\n".join(lines)


def _as_left(record: JobRecord) -> JobRecord:
    """An interrupted job with what its directory says of its steps."""
    if record.state is not JobState.INTERRUPTED or record.directory is None:
        return record
    directory = JobDirectory(Path(record.directory))
    return record.model_copy(update={"steps": tuple(map(directory.done, record.steps))})


def _since(record: JobRecord) -> str:
    """Since when nobody runs an interrupted job: the last sign of life of who did."""
    if record.state is not JobState.INTERRUPTED or record.directory is None:
        return ""
    last = last_sign(Path(record.directory))
    return f" since {last:%Y-%m-%d %H:%M:%S} UTC" if last is not None else ""


def how_to_go_on(record: JobRecord, config: str | None) -> list[str]:
    """The command; with the configuration that a person asks with, where the run found none at its own; or none."""
    if record.never_began:
        return []
    nowhere = record.directory is None and not os.path.exists(str(record.config))  # noqa: PTH110 - an answer
    mistyped = nowhere and config is not None
    return [continue_hint(record.model_copy(update={"config": config}) if mistyped else record)]


def hint_anywhere(record: JobRecord) -> str:
    """As ``continue_hint``, for who reads it in another directory of the machine than the one that was worked in."""
    where = ["--set", f"jobs_dir={Path(record.directory).parent}"] if record.directory else []
    return f"continue with: {command('pipeline', 'continue', str(record.config), record.id, *where, anywhere=True)}"


def continue_hint(record: JobRecord) -> str:
    """The command that goes on with a job, and where it decides, how."""
    overrides = [str(one) for one in record.parameters.get("overrides") or ()]
    where = [part for one in overrides if one.startswith("jobs_dir=") for part in ("--set", one)]
    how = "\n  it asks on a terminal; elsewhere add --approve or --reject" if record.undecided else ""
    return f"continue with: {command('pipeline', 'continue', str(record.config), record.id, *where)}{how}"


def list_jobs(
    config: str,
    *,
    overrides: Sequence[str],
    as_json: bool,
    states: Collection[str] = (),
    since: datetime | None = None,
) -> int:
    """Print the jobs of a configuration's jobs directory, newest first: of these states, asked for since then."""
    from flows.gate.decisions import as_decided

    loaded = load(config, overrides)
    records: list[JobRecord] = []
    if has_any_job(loaded):
        with opened(loaded) as session:
            notice(session.api, hint_anywhere)
            found = (as_decided(session, record) for record in session.jobs(since))
            records = [record for record in found if not states or record.state.value in states]
    if as_json:
        say_json([record.row() for record in records])
        return 0
    if not records:
        say("no such jobs" if states or since else "no jobs")
        return 0
    say(f"{'JOB':36}  {'STATE':11}  {'STEP':14}  {'FILES':>6}  {'AGE':12}  NAME, AND WHY IT FAILED OR WAITS")
    for record in records:
        row = record.row()
        files = "" if row["files"] is None else str(row["files"])
        where = f"{record.id:36}  {record.state.value:11}  {row['step'] or '':14}  {files:>6}"
        say(f"{where}  {age(record.created):12}  {one_line(record.name)}{reason(record)}")
    return 0


def reason(record: JobRecord) -> str:
    """Why a job failed or waits, in a few words behind its name."""
    row = record.row()
    if record.error and row["error"]:
        said = one_line(record.error.message)[:80]
        return f": {said}" if said.startswith(record.error.reference) else f": {record.error.reference}, {said}"
    return ": waits for a decision" if row["waiting"] else ""


def age(created: str | None) -> str:
    """How long ago, for a person."""
    if not created:
        return ""
    seconds = (datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds()
    return human_seconds(seconds) if seconds >= 0 else f"in {human_seconds(-seconds)}"
