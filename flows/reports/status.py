"""``pipeline status`` and ``job list``: the record of a job for a person or a script. Never imports Prefect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from flows.job.problem import Problem
from flows.job.record import JobRecord, continue_hint
from flows.job.state import JobState
from flows.prefect.api import Json
from flows.reports.waiting import short_text
from tasks.shared.markdown import visible
from tasks.shared.units import human_seconds

STEP_KEYS = (
    "position", "name", "state", "files", "resources_in", "resources_out", "bytes_in", "bytes_out", "seconds",
    "requests", "retries", "details",
)  # fmt: skip
DECISION_KEYS = ("by", "when", "comment", "where")
ERROR_KEYS = {"reference", "message", "context", "hint", "transient"}

_ENDED_BADLY = frozenset({JobState.FAILED, JobState.CANCELLED})
_GOES_ON = frozenset({JobState.FAILED, JobState.STOPPED, JobState.INTERRUPTED, JobState.WAITING, JobState.DECIDED})


def status_of(record: JobRecord) -> Json:
    """Return the output of ``status --json``, also the content of ``job.json``."""
    waiting, error, extraction = record.undecided, error_of(record), record.extraction
    shown = record.newest_page
    return {
        "id": record.id,
        "name": record.name,
        "state": record.state.value,
        "step": record.current_step,
        "created": record.created,
        "updated": record.updated,
        "config": record.config,
        "directory": record.directory,
        "crtdl": record.crtdl,
        "extraction": asdict(extraction) if extraction else None,
        "steps": [step.model_dump(mode="json", include=set(STEP_KEYS)) for step in record.steps],
        "progress": record.progress.model_dump() if record.progress else None,
        "waiting": waiting.model_dump(include={"step", "directory", "reason"}) if waiting else None,
        "error": error.model_dump(include=ERROR_KEYS) if error else None,
        "warnings": [
            {"step": step.name, "position": step.position, "message": message}
            for step in record.steps
            for message in dict.fromkeys(step.warnings)
        ],
        "findings": _findings(record),
        "decisions": [
            {"position": position, "approved": decision.approved}
            | {key: getattr(decision, key) or None for key in DECISION_KEYS}
            for position, decision in sorted(record.decisions.items())
        ],
        "report": {"page": str(record.page), "stops": shown.stops, "looks": shown.looks} if shown else None,
    }  # fmt: skip


def _findings(record: JobRecord) -> Json | None:
    """Return what the last validation found in the data, and whether its gate is open; ``None`` without one."""
    done = [step for step in record.steps if step.state == "completed" and step.findings is not None]
    if not done:
        return None
    last, error = done[-1], error_of(record)
    warnings = (last.details.get("severities") or {}).get("warning", 0)
    gate = "closed" if error is not None and error.step == last.name else "open"
    return {"errors": last.findings, "warnings": warnings, "gate": gate}


def error_of(record: JobRecord) -> Problem | None:
    """Return the error with which the job failed or was cancelled, if any."""
    return record.error if record.state in _ENDED_BADLY else None


def row_of(record: JobRecord) -> Json:
    """Return a job's entry in ``job list --json``."""
    waiting, error = record.undecided, error_of(record)
    return {
        "id": record.id,
        "name": record.name,
        "state": record.state.value,
        "step": record.current_step,
        "files": record.files,
        "created": record.created,
        "error": error.reference if error else None,
        "waiting": waiting.step if waiting else None,
    }


def table(records: Sequence[JobRecord]) -> str:
    """Return the output of ``job list``: a line for each job, below a heading."""
    lines = [f"{'JOB':36}  {'STATE':11}  {'STEP':14}  {'FILES':>6}  {'AGE':12}  NAME, AND WHY IT FAILED OR WAITS"]
    for record in records:
        files = "" if record.files is None else str(record.files)
        where = f"{record.id:36}  {record.state.value:11}  {record.current_step or '':14}  {files:>6}"
        lines.append(f"{where}  {_age(record.created):12}  {visible(record.name)}{_reason(record)}")
    return "\n".join(lines)


def _reason(record: JobRecord) -> str:
    """Return in a few words why a job failed or waits. ``table`` puts them behind the job's name."""
    if error := error_of(record):
        said = visible(" ".join(error.message.split()))[:80]
        return f": {said}" if said.startswith(error.reference) else f": {error.reference}, {said}"
    if waiting := record.undecided:
        return f": {visible(waiting.reason)[:80]}" if waiting.reason else ": waits for a decision"
    return ""


def _age(created: str | None) -> str:
    if not created:
        return ""
    seconds = (datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds()
    return human_seconds(seconds) if seconds >= 0 else f"in {human_seconds(-seconds)}"


def text(record: JobRecord) -> str:
    """Return a job's status for a person."""
    lines = [f"job {record.id}: {record.state.value}"]
    for step in record.steps:
        detail = f": {step.summary()}" if step.state == "completed" else ""
        lines.append(f"  {step.position} {step.name}: {step.state}{detail}")
    if record.progress and record.progress.message:
        lines.append(f"  {record.progress.message}")
    if waiting := record.undecided:
        lines.append(short_text(record, waiting))
    for position, decision in sorted(record.decisions.items()):
        lines.append(f"  step {position} was {decision.describe(visible)}")
    if error := error_of(record):
        lines.append(error.render())
    if record.extraction:
        lines.append(f"extraction {record.extraction.job_id}")
    if record.directory:
        lines.append(f"directory {record.directory}")
    if record.page is not None and not waiting:
        lines.append(f"release report {record.page}")
    if record.state in _GOES_ON and not record.never_began:
        lines.append(continue_hint(record))
    return "\n".join(lines)
