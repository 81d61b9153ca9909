"""The page of a job in the Prefect UI: Markdown of the record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flows.job.record import JobRecord, continue_command
from flows.job.state import JobState
from flows.prefect.artifacts import JOB
from flows.reports.waiting import form_text
from tasks.shared.markdown import code, literal
from tasks.shared.report import StepReport
from tasks.shared.units import human_bytes

DATA = ("#", "step", "state", "files", "resources in", "resources out", "in", "out")
TIMES = ("#", "step", "time", "rate", "requests", "retries", "p50", "p95")
"""The columns in two tables, because one is wider than the page."""


def page_of(record: JobRecord) -> tuple[str, str]:
    """Return the title of a job's page, and its text: state, what it waits for or what went wrong, steps, and files."""
    state = record.state
    lines = [f"# {literal(record.name)}", "", f"The job is **{state}**.", ""]
    if state is JobState.WAITING and record.waiting is not None:
        lines += ["## Waiting", "", form_text(record, record.waiting, None), ""]
    if state in {JobState.FAILED, JobState.CANCELLED} and record.error is not None:
        error = record.error
        where = f"step {literal(error.step)}" if error.step else "preparation"
        lines += ["## Error", "", f"{code(error.reference)} in {where}: {literal(error.message)}", ""]
        lines += [f"{literal(said)}\n" for said in (error.context, error.hint) if said]
    if state in {JobState.WAITING, JobState.FAILED, JobState.STOPPED}:
        verb = "Decide" if state is JobState.WAITING else "Continue"
        lines += [f"{verb} on its machine with {code(continue_command(record))}", ""]
    cells = [step.cells() for step in record.steps]
    lines += ["## Steps", "", _table(DATA, [[row[name] for name in DATA] for row in cells]), ""]
    if timed := [[row[name] for name in TIMES] for row in cells if row["time"]]:
        lines += ["## Times", "", _table(TIMES, timed), ""]
    for step in record.steps:
        lines += _details(step)
    if record.decisions:
        lines += ["## Decisions", ""]
    for position, decision in sorted(record.decisions.items()):
        lines += [f"Step {position} (wait) was {decision.describe(literal)}", ""]
    return f"{JOB}: {state}", "\n".join([*lines, *_places(record)]) + "\n"


def _details(step: StepReport) -> list[str]:
    """Return the step's own facts and its warnings."""
    facts = [*_facts(step.details), *(("warning", warning) for warning in step.warnings)]
    return [f"## Step {step.position}, {literal(step.name)}", "", _table(("what", "value"), facts), ""] if facts else []


def _facts(details: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield a row for each fact that there is; a table of facts has one for each entry, and so has a list of them."""
    for key, value in details.items():
        name = before + key if before else key.replace("_", " ")  # the keys of a table are codes and paths
        match value:
            case None | []:
                continue
            case dict():
                yield from _facts(value, f"{name}: ")
            case [dict(), *_]:
                for number, entry in enumerate(value, start=1):
                    yield f"{name}: {number}", ", ".join(map(" ".join, _facts(entry)))
            case _:
                yield name, _plain(key, value)


def _plain(key: str, value: Any) -> str:
    """Return a fact as text; ``key`` distinguishes bytes from other numbers."""
    match value:
        case str():
            return value
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return human_bytes(value) if key.endswith("bytes") else f"{value:,}"
    return ", ".join(map(str, value))


def _places(record: JobRecord) -> Iterator[str]:
    if record.directory is not None:
        yield from ("## Files", "", f"The files of the job are in {code(record.directory)}", "")
    if record.page is not None:
        yield from (f"The release report is {code(str(record.page))}", "")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of literal texts; columns without any value are left out, except the first two."""
    keep = [n for n in range(len(header)) if n < 2 or any(cells[n] for cells in rows)]
    lines = ["| " + " | ".join(header[n] for n in keep) + " |", "|" + "---|" * len(keep)]
    lines += ["| " + " | ".join(literal(cells[n]) for n in keep) + " |" for cells in rows]
    return "\n".join(lines)
