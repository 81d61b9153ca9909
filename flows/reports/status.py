"""``pipeline status`` and ``job list``: the job record for a person or a script. Never imports Prefect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from flows.gate.reviewed_files import where_to_look
from flows.job.record import JobRecord, ProgressRecord, how_to_go_on
from flows.job.state import JobState
from flows.output import one_line
from flows.prefect.api import Json
from flows.shell import about
from tasks import declared
from tasks.shared.report import ON_DEMAND, StepReport
from tasks.shared.units import human_seconds

STEP_KEYS = {
    "position", "name", "state", "files", "resources_in", "resources_out", "bytes_in", "bytes_out",
    "seconds", "findings",
}  # fmt: skip
"""What ``pipeline status --json`` shows of a step (``4-product.md`` §2)."""

APPROVAL_KEYS = ("approved", "by", "when", "comment", "where")
"""What ``pipeline status --json`` shows of a decision, with its position (``4-product.md`` §2)."""


def text(record: JobRecord, config: str | None = None) -> str:
    """Return a job's status for a person who gave ``config``."""
    lines = [f"job {record.id}: {record.state.value}"]
    for step in record.steps:
        detail = step.summary() if step.state == "completed" else ""
        lines.append(f"  {step.position} {step.name}: {step.state}" + (f": {detail}" if detail else ""))
    if record.progress and record.progress.message:
        lines.append(f"  {record.progress.message}")
    if waiting := record.undecided:
        lines += [f"waits at step {waiting.position} for approval", *where_to_look(waiting)]
    for position, approval in record.decisions:
        lines.append(f"  step {position} was {approval.describe_decision(one_line)}")
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
        lines.append("workers do not resume jobs started from the command line: continue it there")
    if record.state in {JobState.WAITING, JobState.FAILED, JobState.STOPPED, JobState.INTERRUPTED}:
        lines += how_to_go_on(record, config)
    return "\n".join(lines)


def status_of(record: JobRecord) -> Json:
    """Return the output of ``pipeline status --json``. Keys are never left out (``4-product.md`` §2)."""
    waiting = record.waiting if record.state is JobState.WAITING else None
    error = record.error if record.state in {JobState.FAILED, JobState.CANCELLED} else None
    progress = record.progress or ProgressRecord()
    return {
        "id": record.id,
        "state": record.state.value,
        "step": None if record.state is JobState.COMPLETED else record.current_step,
        "created": record.created,
        "updated": record.updated,
        "config": record.config,
        "crtdl": record.crtdl,
        "extraction": record.extraction.model_dump(),
        "steps": [step.model_dump(include=STEP_KEYS) for step in record.steps],
        "progress": progress.model_dump(),
        "waiting": waiting.model_dump(include={"step", "directory"}) if waiting else None,
        "error": error.model_dump(include={"reference", "message", "hint", "transient"}) if error else None,
        "warnings": [
            {"step": step.name, "position": step.position, "count": count, "message": message}
            for step in record.steps
            for message, count in Counter(step.warnings).items()
        ],
        "findings": _findings(record, record.steps),
        "approvals": [
            {"position": position}
            | {key: None if (value := getattr(approval, key)) == "" else value for key in APPROVAL_KEYS}
            for position, approval in record.decisions
        ],
        "report": str(record.page) if record.page is not None else None,
    }


def _findings(record: JobRecord, steps: Sequence[StepReport]) -> Json:
    """Return what the last step with a gate found in the data, and whether the job passed the gate."""
    gated = [step for step in steps if step.state == "completed" and declared(step.name).gate is not None]
    if not gated:
        return {"errors": None, "warnings": None, "gate": None}
    last = gated[-1]
    behind = record.state in {JobState.COMPLETED, JobState.WAITING} or any(
        step.started is not None for step in steps[last.position :]
    )
    shut = record.state is JobState.FAILED and record.error is not None and record.error.step == last.name
    gate = "closed" if shut else "open" if behind or not last.findings else None
    severities = last.details.get("severities")
    warnings = severities.get("warning", 0) if isinstance(severities, dict) else None
    return {"errors": last.findings, "warnings": warnings, "gate": gate}


def row_of(record: JobRecord) -> Json:
    """Return the output of ``job list --json`` for this job."""
    failed = record.state in {JobState.FAILED, JobState.CANCELLED}
    return {
        "id": record.id,
        "name": record.name,
        "state": record.state.value,
        "step": None if record.state is JobState.COMPLETED else record.current_step,
        "files": record.files,
        "created": record.created,
        "error": record.error.reference if record.error and failed else None,
        "waiting": record.waiting.step if record.waiting and record.state is JobState.WAITING else None,
    }


def _reason(record: JobRecord) -> str:
    """Return in a few words why a job failed or waits, to follow its name."""
    row = row_of(record)
    if record.error and row["error"]:
        said = one_line(record.error.message)[:80]
        return f": {said}" if said.startswith(record.error.reference) else f": {record.error.reference}, {said}"
    return ": waits for a decision" if row["waiting"] else ""


def _age(created: str | None) -> str:
    """Return the time since then, in words."""
    if not created:
        return ""
    seconds = (datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds()
    return human_seconds(seconds) if seconds >= 0 else f"in {human_seconds(-seconds)}"


def table(records: Sequence[JobRecord]) -> str:
    """Return the output of ``job list``: a line for each job, below a heading."""
    lines = [f"{'JOB':36}  {'STATE':11}  {'STEP':14}  {'FILES':>6}  {'AGE':12}  NAME, AND WHY IT FAILED OR WAITS"]
    for record in records:
        row = row_of(record)
        files = "" if row["files"] is None else str(row["files"])
        where = f"{record.id:36}  {record.state.value:11}  {row['step'] or '':14}  {files:>6}"
        lines.append(f"{where}  {_age(record.created):12}  {one_line(record.name)}{_reason(record)}")
    return "\n".join(lines)
