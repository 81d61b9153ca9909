"""Artifacts: what a person reads in the Prefect UI. Counts, sizes, times and names of steps; never data.

One markdown page ``job-<id>`` a job, a table ``step-<position>-<name>-…`` a step, one more for each table among its
details; the progress artifact is written by ``flows/job/watch.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from flows.engine.artifacts import Artifacts, step_key
from flows.job.record import JobRecord
from flows.reports.events import JobEnd
from flows.reports.markdown import code, literal, table
from flows.reports.summary import Compared, reconciliation
from tasks.shared.errors import SluiceError
from tasks.shared.log import logger
from tasks.shared.report import Corrections, StepReport, Waiting
from tasks.shared.units import human_bytes

DATA = ("#", "step", "state", "files", "resources in", "resources out", "in", "out")
TIMES = ("#", "step", "time", "rate", "requests", "retries", "p50", "p95")
"""The columns in two tables, because one is wider than the page."""

PageState = Literal["running"] | JobEnd


@contextmanager
def best_effort(what: str) -> Iterator[None]:
    """What cannot be written for a person fails no run."""
    try:
        yield
    except SluiceError as error:
        logger.warning("%s is not written: %s", what, error.message)


def step_table(artifacts: Artifacts, job_id: str, step: StepReport) -> None:
    """Publish the table of one finished step, and those among its details."""
    # Position and name are in the title.
    facts = [_fact(title, value) for title, value in step.cells().items() if value and title not in ("#", "step")]
    tables = {key: value for key, value in step.details.items() if _is_table(value)}
    facts += [fact for key, value in step.details.items() if key not in tables for fact in _facts(key, value)]
    facts += [_fact("warning", text) for text in step.warnings]
    key, title = step_key("step", step.position, step.name, job_id), f"Step {step.position}, {step.name}"
    artifacts.publish(key, "table", json.dumps(facts), title)
    for name, rows in tables.items():
        cells = [{_words(column): literal(_plain(column, value)) for column, value in line.items()} for line in rows]
        artifacts.publish(f"{key}-{name}".replace("_", "-"), "table", json.dumps(cells), f"{title}: {_words(name)}")


def failure_table(artifacts: Artifacts, job_id: str, position: int, name: str, error: SluiceError) -> None:
    """Publish what a failed step counted, where its error says so."""
    facts = [fact for key, value in error.details.items() for fact in _facts(key, value)]
    if facts:
        key = step_key("step", position, name, job_id)
        artifacts.publish(key, "table", json.dumps(facts), f"Step {position}, {name}: failed")


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(line, dict) for line in value)


def _facts(key: str, value: Any) -> list[dict[str, str]]:
    """One row, or one for every entry of a table of counts."""
    if isinstance(value, dict) and value and not any(isinstance(entry, (dict, list)) for entry in value.values()):
        return [_fact(f"{_words(key)}: {name}", _plain(key, entry)) for name, entry in value.items()]
    return [_fact(_words(key), _plain(key, value))]


def _fact(what: str, value: str) -> dict[str, str]:
    return {"what": literal(what), "value": literal(value)}


def _words(key: str) -> str:
    return key.replace("_", " ")


def _plain(key: str, value: Any) -> str:
    """A detail in the form a person reads; ``key`` tells bytes and seconds from other numbers."""
    match value:
        case str():
            return value
        case bool():
            return "yes" if value else "no"
        case None | [] | {}:
            return "none"
        case int() | float() if key.endswith("bytes"):
            return human_bytes(value)
        case int() | float() if key.endswith("seconds"):
            return f"{value:,} s"
        case int() | float():
            return f"{value:,}"
        case [*entries] if not any(isinstance(entry, (dict, list)) for entry in entries):
            return ", ".join(str(entry) for entry in entries)
    return json.dumps(value, ensure_ascii=False)


def job_page(artifacts: Artifacts, record: JobRecord, *, state: PageState) -> None:
    """Publish the job's page: what happened to every step, what it waits for, what went wrong.

    ``state`` is the one the run is about to have, which the record does not show yet.
    """
    rows = [step.cells() for step in record.steps]
    lines = [f"# {literal(record.name)}", "", f"The job is **{state}**.", ""]
    if state == "waiting" and record.waiting:
        lines += ["## Waiting", "", wait_description(record.waiting, record.step_names), ""]
    if state in {"failed", "cancelled"} and record.error:
        error = record.error
        where = f"step {literal(error.step)}" if error.step else "preparation"
        lines += ["## Error", "", f"{code(error.reference)} in {where}: {literal(error.message)}", ""]
        lines += [f"{literal(text)}\n" for text in (error.context, error.hint) if text]
    lines += ["## Steps", "", table(DATA, [[cells[name] for name in DATA] for cells in rows]), ""]
    if timed := [[cells[name] for name in TIMES] for cells in rows if cells["time"]]:
        lines += ["## Times and requests", "", table(TIMES, timed), ""]
        lines += ["p50 and p95: the time that half and 95 % of the requests did not exceed.", ""]
    if compared := reconciliation(record.steps):
        lines += ["## Reconciliation", "", _reconciliation(compared), ""]
    lines += ["## Decisions", ""] if record.approvals else []
    for position, approval in sorted(record.approvals.items()):
        lines += [f"Step {position} (wait) was {approval.told(literal)}", ""]
    lines += ["## Files", "", f"- job {code(record.id)}"]
    files = (("configuration", record.config), ("CRTDL", record.crtdl), ("directory", record.directory))
    lines += [f"- {what} {code(path)}" for what, path in files if path]
    artifacts.publish(f"job-{record.id}", "markdown", "\n".join(lines) + "\n", f"The page of the job: {state}")


def _reconciliation(compared: Sequence[Compared]) -> str:
    """Lines written by the step before and read by the step."""
    header = ("#", "step", "lines written before it", "lines it read", "")
    verdicts = {True: "agrees", False: "differs"}
    return table(
        header,
        [[str(one.position), one.name, f"{one.written:,}", f"{one.read:,}", verdicts[one.agrees]] for one in compared],
    )


def wait_description(waiting: Waiting, step_names: Sequence[str]) -> str:
    """What the resume form tells a person."""
    after = step_names[waiting.position : waiting.position + 1]
    further = f"the job goes on with {code(after[0])}" if after else "the job is complete"
    lines = [f"The job waits at step {waiting.position} of {len(step_names)} for your decision.", ""]
    if waiting.again:
        lines += ["**It waits again**: what is there is not what was approved", "", *_items(waiting.again), ""]
    lines += [f"- **Look at** the files in {code(waiting.looked_at)}"]
    if waiting.reads:
        which = "the corrected files" if waiting.reads == waiting.directory else "these files"
        reader = f"**What leaves**: {code(waiting.reader)}" if waiting.leaves else f"**Goes on with**: {waiting.reader}"
        lines += [f"- {reader} reads {which} in {code(waiting.reads)}"]
        lines += [f"  {line}" for line in _items(waiting.files)]
    lines += [
        f"- **To change something**, {_change(waiting)}",
        "- **The decision is for the files that are there now**: if they change, the job waits once more",
        f"- **Decide**: *release*, {further}; *reject*, it ends as cancelled.",
    ]
    return "\n".join(lines) + "\n"


def _items(lines: Sequence[str]) -> list[str]:
    return [f"- {code(line)}" for line in lines]


def _change(waiting: Waiting) -> str:
    """Where corrected files go, and which."""
    place = code(waiting.directory)
    if waiting.corrections is Corrections.NOT_SENT:
        return f"use a wait in front of `flattening`: tables in {place} would not be sent"
    kind = "tables" if waiting.corrections is Corrections.TABLES else "files"
    return (
        f"put corrected {kind} where the next step reads them instead, into {place}, and resume: the job waits once "
        "more, and lists them here; a file that is changed where it lies cannot be released"
    )
