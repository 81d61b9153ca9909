"""The page of a job in the Prefect UI, and the text of a wait's form: Markdown of the record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from flows.job.record import JobEnd, JobRecord
from flows.job.waiting import Waiting
from flows.prefect.artifacts import JOB, Page
from flows.reports.markdown import best_effort, code, literal, table
from tasks.release_report.report import lines_of
from tasks.shared.files.data_directory import as_shown, finished_files
from tasks.shared.report import Corrections, StepReport
from tasks.shared.units import human_bytes

PageState = Literal["running"] | JobEnd

DATA = ("#", "step", "state", "files", "resources in", "resources out", "in", "out")
TIMES = ("#", "step", "time", "rate", "requests", "retries", "p50", "p95")
"""The columns in two tables, because one is wider than the page."""


def publish(page: Page, record: JobRecord, state: PageState, continued_with: str) -> None:
    """Publish the page of a job that is about to be in this state; ``continued_with`` is the command to go on."""
    with best_effort("the page of the job"):
        page.publish(f"{JOB}: {state}", text(record, state, continued_with))


def text(record: JobRecord, state: PageState, continued_with: str) -> str:
    """Return the page: state, what the job waits for or what went wrong, the steps, the decisions, and the files."""
    lines = [f"# {literal(record.name)}", "", f"The job is **{state}**.", ""]
    if state == "waiting" and record.waiting is not None:
        lines += ["## Waiting", "", form_text(record, record.waiting, None), ""]
    if state in {"failed", "cancelled"} and record.error is not None:
        error = record.error
        where = f"step {literal(error.step)}" if error.step else "preparation"
        lines += ["## Error", "", f"{code(error.reference)} in {where}: {literal(error.message)}", ""]
        lines += [f"{literal(said)}\n" for said in (error.context, error.hint) if said]
    if state in {"waiting", "failed", "stopped"}:
        lines += [f"{'Decide' if state == 'waiting' else 'Continue'} on its machine with {code(continued_with)}", ""]
    cells = [step.cells() for step in record.steps]
    lines += ["## Steps", "", table(DATA, [[row[name] for name in DATA] for row in cells]), ""]
    if timed := [[row[name] for name in TIMES] for row in cells if row["time"]]:
        lines += ["## Times", "", table(TIMES, timed), ""]
    for step in record.steps:
        lines += _details(step)
    if record.decisions:
        lines += ["## Decisions", ""]
    for position, decision in sorted(record.decisions.items()):
        lines += [f"Step {position} (wait) was {decision.describe(literal)}", ""]
    return "\n".join([*lines, *_places(record)]) + "\n"


def _details(step: StepReport) -> list[str]:
    """Return the step's own facts and its warnings."""
    facts = [*_facts(step.details), *(("warning", warning) for warning in step.warnings)]
    return [f"## Step {step.position}, {literal(step.name)}", "", table(("what", "value"), facts), ""] if facts else []


def _facts(details: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield a row for each fact; a table of facts has one for each entry."""
    for key, value in details.items():
        name = f"{before}{key.replace('_', ' ')}"
        if isinstance(value, dict) and value:
            yield from _facts(value, f"{name}: ")
        else:
            yield name, _plain(key, value)


def _plain(key: str, value: Any) -> str:
    """Return a fact as text; ``key`` distinguishes bytes from other numbers."""
    match value:
        case str():
            return value
        case bool():
            return "yes" if value else "no"
        case None | [] | {}:
            return "none"
        case int() | float():
            return human_bytes(value) if key.endswith("bytes") else f"{value:,}"
    return json.dumps(value, ensure_ascii=False)


def _places(record: JobRecord) -> Iterator[str]:
    if record.directory is not None:
        yield from ("## Files", "", f"The files of the job are in {code(record.directory)}", "")
    if record.page is not None:
        yield from (f"The release report is {code(str(record.page))}", "")


def form_text(record: JobRecord, waiting: Waiting, by_hand: str | None) -> str:
    """Return the text of the form; ``by_hand`` is the command to run after the decision, where no worker goes on."""
    steps = record.step_names
    after = f"the job goes on with {code(steps[waiting.position])}" if steps[waiting.position :] else "the job ends"
    lines = [f"The job waits at step {waiting.position} of {len(steps)} for your decision.", ""]
    if waiting.reason is not None:
        lines += [f"**It waits again**: {literal(waiting.reason)}", ""]
    lines += [*_report(record, waiting), f"- **Look at** the files in {code(waiting.looked_at)}"]
    lines += [f"- **Next**, the files in {code(waiting.reads)} are read:"]
    lines += [f"  - {code(file)}" for file in files_read(waiting)]
    lines += [f"- **Destination**: {code(where)}"] if (where := destination_line(record, waiting)) else []
    lines += [f"- **To change something**, {_how_to_correct(waiting)}"]
    lines += ["- **The decision is for these files and this destination**: if they change, the job waits again"]
    lines += [f"- **Decide**: *release*: {after}; *reject*: the job is cancelled"]
    if by_hand is not None:
        lines += [f"- **After the decision**, continue the job on its machine: {code(by_hand)}"]
    return "\n".join(lines) + "\n"


def _report(record: JobRecord, waiting: Waiting) -> Iterator[str]:
    """Yield the short form of the release report."""
    shown = record.shown.get(waiting.position)
    if shown is not None and shown.failed is not None:
        yield f"- **The release report could not be made**: {literal(shown.failed)}"
    elif shown is not None and shown.page is not None:
        first, *others = lines_of(waiting.job_dir) or ["made"]
        yield f"- **Release report**: {literal(first)}"
        yield from (f"  - {literal(line.strip())}" for line in others)
        yield f"  - Its page on the machine of the job: {code(str(waiting.job_dir / shown.page))}"
    if shown is not None and shown.needs_comment:
        yield "- **A release needs a comment** that says why"


def _how_to_correct(waiting: Waiting) -> str:
    place = code(waiting.directory)
    if waiting.corrections is Corrections.NOT_SENT:
        return f"use a wait before {code('flattening')}: tables in {place} would not be sent"
    kind = "tables" if waiting.corrections is Corrections.TABLES else "files"
    return f"put all corrected {kind} into {place} and resume: they are read instead, and the job waits again"


def files_read(waiting: Waiting) -> list[str]:
    """Return the first files that are read next, each with its size, and the number of the others."""
    place = Path(waiting.reads)
    found = ((path.relative_to(place).as_posix(), path.stat().st_size) for path in finished_files(place))
    return as_shown(f"{name}, {human_bytes(size)}" for name, size in found)


def destination_line(record: JobRecord, waiting: Waiting) -> str:
    """Return where the data go, in one line; empty if no step sends them."""
    shown = record.shown.get(waiting.position)
    return ", ".join(f"{name} {value}" for name, value in shown.destination.items()) if shown is not None else ""
