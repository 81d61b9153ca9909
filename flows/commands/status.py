"""``pipeline status`` and ``job list``: the record as a person or a script reads it. Never imports Prefect."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from config import load_config
from flows.job.record import JobRecord, JobState
from flows.job.seen import correction_words, told
from flows.job.session import has_any_job, opened
from flows.output import one_line, say, say_json, write
from tasks.shared.report import Waiting
from tasks.shared.units import human_seconds


def show(config: str, job_id: str, *, overrides: Sequence[str], as_json: bool, watch: bool) -> int:
    """Print one job's status; with ``watch`` until it neither runs nor is pending."""
    with opened(load_config(Path(config), overrides=overrides)) as session:
        while True:
            record = session.job(job_id)
            if not as_json and watch:
                write("\x1b[2J\x1b[H")
            if as_json:
                say_json(record.status())
            else:
                say(text(record))
            if not watch or record.state not in {JobState.RUNNING, JobState.PENDING}:
                return 0
            time.sleep(2)


def text(record: JobRecord) -> str:
    """A job's status for a person."""
    lines = [f"job {record.id}: {record.state.value}"]
    for step in record.steps:
        detail = step.summary() if step.state == "completed" else ""
        lines.append(f"  {step.position} {step.name}: {step.state}" + (f": {detail}" if detail else ""))
    if record.progress and record.progress.message:
        lines.append(f"  {record.progress.message}")
    if waiting := record.undecided:
        lines += [f"waits at step {waiting.position} for approval", *where_to_look(waiting)]
    for position, approval in sorted(record.approvals.items()):
        lines.append(f"  step {position} was {approval.told(one_line)}")
    if record.error and record.state in {JobState.FAILED, JobState.CANCELLED}:
        error = record.error
        lines.append(f"error[{error.reference}]: {error.message}")
        lines += [f"  {error.context}"] if error.context else []
        lines += [f"hint: {error.hint}"] if error.hint else []
    if record.directory:
        lines.append(f"directory {record.directory}")
    if record.state in {JobState.WAITING, JobState.FAILED, JobState.STOPPED, JobState.INTERRUPTED}:
        lines.append(continue_hint(record))
    return "\n".join(lines)


def where_to_look(waiting: Waiting) -> list[str]:
    """What somebody who decides looks at, and where corrections go."""
    return [f"  look at {waiting.looked_at}", correction_words(waiting), *told(waiting)]


def continue_hint(record: JobRecord) -> str:
    """The command that goes on with a job, and where it decides, how."""
    overrides = [str(one) for one in record.parameters.get("overrides") or ()]
    where = [part for one in overrides if one.startswith("jobs_dir=") for part in ("--set", one)]
    command = ["python", "-m", "flows.run", "pipeline", "continue", str(record.config), record.id, *where]
    how = "\n  it asks on a terminal; elsewhere add --approve or --reject" if record.undecided else ""
    return f"continue with: {shlex.join(command)}{how}"


def list_jobs(config: str, *, overrides: Sequence[str], as_json: bool) -> int:
    """Print the jobs of a configuration's jobs directory, newest first."""
    loaded = load_config(Path(config), overrides=overrides)
    records: list[JobRecord] = []
    if has_any_job(loaded):
        with opened(loaded) as session:
            records = session.jobs()
    if as_json:
        say_json([record.row() for record in records])
        return 0
    if not records:
        say("no jobs")
        return 0
    say(f"{'JOB':36}  {'STATE':11}  {'STEP':14}  {'FILES':>6}  AGE")
    for record in records:
        row = record.row()
        files = "" if row["files"] is None else str(row["files"])
        say(f"{record.id:36}  {record.state.value:11}  {row['step'] or '':14}  {files:>6}  {age(record.created)}")
    return 0


def age(created: str | None) -> str:
    """How long ago, for a person."""
    if not created:
        return ""
    then = datetime.fromisoformat(created)
    return human_seconds(max(0.0, (datetime.now(UTC) - then).total_seconds()))
