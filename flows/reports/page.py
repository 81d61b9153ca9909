"""The page of a job in the Prefect UI: Markdown of the record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flows.job.record import JobRecord, continue_command
from flows.job.state import JobState
from flows.prefect.artifacts import JOB
from flows.reports.status import error_of
from flows.reports.waiting import form_text
from tasks.shared.markdown import code, literal

COLUMNS = ("#", "step", "state", "files", "resources in", "resources out", "in", "out", "time")
"""Columns of the steps' table; more would be wider than the page."""


def page_of(record: JobRecord) -> tuple[str, str]:
    """Return the title and the text of a job's page: state, what it waits for, its error, steps, and files."""
    state = record.state
    lines = [f"# {literal(record.name)}", "", f"The job is **{state}**.", ""]
    if waiting := record.undecided:
        lines += ["## Waiting", "", form_text(record, waiting, None), ""]
    if error := error_of(record):
        where = f"step {literal(error.step)}" if error.step else "preparation"
        lines += ["## Error", "", f"{code(error.reference)} in {where}: {literal(error.message)}", ""]
        lines += [f"{literal(said)}\n" for said in (error.context, error.hint) if said]
    if state in {JobState.WAITING, JobState.FAILED, JobState.STOPPED}:
        verb = "Decide" if state is JobState.WAITING else "Continue"
        lines += [f"{verb} on its machine with {code(continue_command(record))}", ""]
    cells = [step.cells() for step in record.steps]
    lines += ["## Steps", "", _table([[row[name] for name in COLUMNS] for row in cells]), ""]
    warnings = [f"- {literal(f'{step.name}: {text}')}" for step in record.steps for text in step.warnings]
    if warnings:
        lines += ["## Warnings", "", *warnings, ""]
    if record.decisions:
        lines += ["## Decisions", ""]
    for position, decision in sorted(record.decisions.items()):
        lines += [f"Step {position} (wait) was {decision.describe(literal)}", ""]
    return f"{JOB}: {state}", "\n".join([*lines, *_places(record)]) + "\n"


def _places(record: JobRecord) -> Iterator[str]:
    if record.directory is not None:
        yield from ("## Files", "", f"The files of the job are in {code(record.directory)}", "")
    if record.page is not None:
        yield from (f"The release report is {code(str(record.page))}", "")


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Return the steps as a table. Columns without any value are left out, except the first two."""
    keep = [n for n in range(len(COLUMNS)) if n < 2 or any(cells[n] for cells in rows)]
    lines = ["| " + " | ".join(COLUMNS[n] for n in keep) + " |", "|" + "---|" * len(keep)]
    lines += ["| " + " | ".join(literal(cells[n]) for n in keep) + " |" for cells in rows]
    return "\n".join(lines)
