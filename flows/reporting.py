"""Artifacts: what a person reads in the Prefect UI. Counts, sizes, times and names of steps; never data.

One markdown page ``job-<id>`` a job, a table ``job-<id>-<position>`` a step (``…-<name>`` for a table among its
details); the progress artifact is written by ``flows/watch.py``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from flows.api import PrefectApi
from flows.record import JobRecord, StepRecord, Waiting
from flows.watch import human_bytes, human_seconds
from tasks.shared.errors import SluiceError

COLUMNS = (
    "#",
    "step",
    "state",
    "files",
    "resources in",
    "resources out",
    "in",
    "out",
    "time",
    "rate",
    "requests",
    "retries",
    "p50",
    "p95",
)


def row(step: StepRecord) -> list[str]:
    """One step as the cells of ``COLUMNS``."""
    moved = step.bytes_in if step.bytes_in is not None else step.bytes_out
    rate = f"{moved / step.seconds / 1e6:.1f} MB/s" if moved and step.seconds else ""
    return [
        str(step.position),
        step.name,
        step.state,
        _count(step.files),
        _count(step.resources_in),
        _count(step.resources_out),
        "" if step.bytes_in is None else human_bytes(step.bytes_in),
        "" if step.bytes_out is None else human_bytes(step.bytes_out),
        "" if step.seconds is None else (f"{step.seconds:.1f} s" if step.seconds < 60 else human_seconds(step.seconds)),
        rate,
        _count(step.requests),
        _count(step.retries),
        _millis(step.p50),
        _millis(step.p95),
    ]


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _millis(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.0f} ms"


def summary(step: StepRecord) -> str:
    """One line for a finished step (``4-product.md`` §5)."""
    cells = dict(zip(COLUMNS, row(step), strict=True))
    parts = [f"{cells['files']} files" if cells["files"] else ""]
    if cells["resources in"] or cells["resources out"]:
        parts.append(f"{cells['resources in'] or '–'} → {cells['resources out'] or '–'} resources")
    if cells["in"] or cells["out"]:
        parts.append(f"{cells['in'] or '–'} → {cells['out'] or '–'}")
    parts += [cells["time"], cells["rate"]]
    if cells["requests"]:
        parts.append(
            f"{cells['requests']} requests, {cells['retries']} retries, p50 {cells['p50']}, p95 {cells['p95']}"
        )
    return ", ".join(part for part in parts if part)


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = COLUMNS) -> str:
    """A markdown table; columns without any value are left out."""
    keep = [n for n in range(len(header)) if n < 3 or any(cells[n] for cells in rows)]
    lines = ["| " + " | ".join(header[n] for n in keep) + " |", "|" + "---|" * len(keep)]
    lines += ["| " + " | ".join(cells[n].replace("|", "\\|") for n in keep) + " |" for cells in rows]
    return "\n".join(lines)


def step_table(api: PrefectApi, job_id: str, step: StepRecord, result: dict[str, Any]) -> None:
    """Publish the table of one finished step."""
    facts = [
        dict(zip(("what", "value"), pair, strict=True)) for pair in zip(COLUMNS, row(step), strict=True) if pair[1]
    ]
    details: dict[str, Any] = result.get("details") or {}
    tables = {key: value for key, value in details.items() if _is_table(value)}
    facts += [fact for key, value in details.items() if key not in tables for fact in _facts(key, value)]
    facts += [{"what": "warning", "value": text} for text in result.get("warnings", ())]
    _publish(
        api,
        job_id,
        f"job-{job_id}-{step.position}",
        "table",
        json.dumps(facts),
        f"Step {step.position}, {step.name}",
    )
    for key, rows in tables.items():
        name = f"job-{job_id}-{step.position}-{key}"
        _publish(api, job_id, name, "table", json.dumps(rows), f"Step {step.position}, {step.name}: {key}")


def failure_table(api: PrefectApi, job_id: str, position: int, name: str, error: SluiceError) -> None:
    """Publish what a failed step counted, where its error says so."""
    facts = [fact for key, value in error.details.items() for fact in _facts(key, value)]
    if facts:
        what = f"Step {position}, {name}: failed"
        _publish(api, job_id, f"job-{job_id}-{position}", "table", json.dumps(facts), what)


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(line, dict) for line in value)


def _facts(key: str, value: Any) -> list[dict[str, str]]:
    """One row, or one for every entry of a table of counts."""
    if isinstance(value, dict) and value and not any(isinstance(entry, (dict, list)) for entry in value.values()):
        return [{"what": f"{key}: {name}", "value": _plain(entry)} for name, entry in value.items()]
    return [{"what": key, "value": _plain(value)}]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def job_page(api: PrefectApi, job_id: str, record: JobRecord, *, done: bool) -> None:
    """Publish the job's page: what happened to every step, what it waits for, what went wrong."""
    lines = [f"# Job {job_id}", "", table([row(step) for step in record.steps]), ""]
    lines += [f"Configuration `{record.config}`, directory `{record.directory}`.", ""]
    if record.crtdl:
        lines += [f"CRTDL `{record.crtdl}`.", ""]
    for position, approval in sorted(record.approvals.items()):
        verb = "approved" if approval.approved else "rejected"
        lines += [f"Step {position} (wait) was {verb} by {approval.who} at {approval.when}.", ""]
    if not done and record.waiting:
        lines += ["## Waiting", "", wait_description(record.waiting), ""]
    if done and record.error:
        lines += [
            "## Error",
            "",
            f"`{record.error.reference}` in {record.error.step or 'preparation'}: {record.error.message}",
            "",
        ]
        lines += [f"{text}\n" for text in (record.error.context, record.error.hint) if text]
    _publish(api, job_id, f"job-{job_id}", "markdown", "\n".join(lines), "What happened to the job")


def wait_description(waiting: Waiting) -> str:
    """What the resume form tells a person."""
    return (
        f"The job waits at step {waiting.position}. Look at the files in `{waiting.looked_at}`. "
        f"If something must change, put corrected files into `{waiting.directory}`: if it holds data files, "
        "the next step reads them instead. Then approve; without approval the job ends as cancelled."
    )


def _publish(api: PrefectApi, job_id: str, key: str, kind: str, data: str, description: str) -> None:
    for artifact in api.artifacts(job_id):
        if artifact.get("key") == key:
            api.update_artifact(artifact["id"], data=data, description=description)
            return
    api.create_artifact(job_id, key=key, kind=kind, data=data, description=description)
