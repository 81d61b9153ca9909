"""``jobs_dir/<job>/summary.json``: the end of a run of a job, in one JSON document for other tools.

Written as a whole at the end of every run, mode 0600; described in ``docs/observability.md``. Sizes are bytes, times
seconds, moments UTC; absent values are null, keys are never left out. Counts, names and sizes only, as in the record.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

from flows.job.inputs import JobInputs
from flows.job.record import JobRecord, Run
from flows.reports.events import JobEnd
from flows.reports.journal import Journal
from tasks.shared.errors import StorageError
from tasks.shared.files.out_file import write_file
from tasks.shared.http.answer import place
from tasks.shared.log import logger
from tasks.shared.publication_counts import details
from tasks.shared.report import Problem, StepReport, StoredModel, Waiting

NAME: Final = "summary.json"


class Compared(StoredModel):
    """Lines that the step before reported as written, and lines that this step read (``4-product.md`` §5,
    "Reconciliation").
    """

    position: int
    name: str
    written: int
    read: int
    agrees: bool


class Inputs(StoredModel):
    """Names of the job's inputs: files and directories without their path, a URL without its query."""

    config: str
    crtdl: str | None
    input: str | None
    anonymization_config: str | None
    patients: str | None


class Versions(StoredModel):
    """Versions of Sluice, Python and Prefect."""

    sluice: str
    python: str
    prefect: str


class Decision(StoredModel):
    """A person's decision at the wait at ``position``; with two reviewers there are two. Comments are left out, since
    they may be about a patient; they are in the job record and in the release report.
    """

    position: int
    approved: bool
    by: str
    when: str
    where: Literal["cli", "ui"]
    overridden: tuple[str, ...]


class Summary(StoredModel):
    """A job at the end of its ``run``-th run. ``created`` is of the job, the other moments are the run's.

    ``report`` is the path of the page of the newest release report.
    """

    id: str
    state: JobEnd
    run: int
    created: str
    started: str
    ended: str
    steps: tuple[StepReport, ...]
    reconciliation: tuple[Compared, ...]
    waiting: Waiting | None
    decisions: tuple[Decision, ...]
    report: str | None
    error: Problem | None
    inputs: Inputs
    versions: Versions


def summary_of(
    record: JobRecord,
    run: Run,
    state: JobEnd,
    inputs: JobInputs,
    *,
    ended: str,
    waiting: Waiting | None = None,
    error: Problem | None = None,
    k: int,
) -> Summary:
    """Return the summary of a job whose ``run`` has just ended in ``state``.

    Without the context of the error, which may be a person's comment, and without the counts of a step that concern
    fewer than ``k`` patients. Of the types of resources only those are named that the release report prints.
    """
    return Summary(
        id=record.id,
        state=state,
        run=run.number,
        created=run.created,
        started=run.began,
        ended=ended,
        steps=tuple(
            step.model_copy(update={"details": details(step.details, k, record.types)}) for step in record.steps
        ),
        reconciliation=tuple(reconciliation(record.steps)),
        waiting=waiting,
        decisions=tuple(
            Decision(position=at, **one.model_dump(include=set(Decision.model_fields) - {"position"}))
            for at, one in record.decisions
        ),
        report=str(record.page) if record.page is not None else None,
        error=error.model_copy(update={"context": None}) if error else None,
        inputs=inputs_of(inputs),
        versions=versions(),
    )


def reconciliation(steps: Iterable[StepReport]) -> list[Compared]:
    """Return every comparison of lines that was made."""
    return [
        Compared(
            position=step.position,
            name=step.name,
            written=step.lines_expected,
            read=step.lines_in,
            agrees=step.lines_expected == step.lines_in,
        )
        for step in steps
        if step.lines_expected is not None and step.lines_in is not None
    ]


def inputs_of(inputs: JobInputs) -> Inputs:
    """Return the names of a job's inputs."""
    return Inputs.model_validate({name: _name(getattr(inputs, name)) for name in Inputs.model_fields})


def _name(value: str | None) -> str | None:
    if value is None:
        return None
    return place(value) if "://" in value else Path(value).name


@functools.cache
def versions() -> Versions:
    """Return the versions of this process."""
    return Versions(sluice=_version("sluice"), python=platform.python_version(), prefect=_version("prefect"))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def end_run(
    journal: Journal,
    directory: Path,
    record: JobRecord,
    inputs: Callable[[], JobInputs],
    state: JobEnd,
    *,
    k: int,
    waiting: Waiting | None = None,
    error: Problem | None = None,
    reason: str | None = None,
) -> None:
    """Record the end of a job's run, in its events and then in its summary; ``k`` as in ``summary_of``.

    Raises only what ``inputs`` raises, after the event is written.
    """
    ended = journal.ends(state, error=error.reference if error else None, reason=reason)
    write(directory, summary_of(record, journal.run, state, inputs(), ended=ended, waiting=waiting, error=error, k=k))


def write(directory: Path, summary: Summary) -> None:
    """Write the summary; the previous one stays until this one is complete.

    Never raises: a failure is logged in ``job.log`` and fails no run.
    """
    try:
        write_file(directory / NAME, summary.model_dump_json(indent=2).encode() + b"\n")
    except StorageError as error:
        logger.warning("%s is not written: %s", NAME, error.message)


@functools.cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the document, as kept in ``docs/schemas/summary.schema.json``."""
    found = Summary.model_json_schema(mode="serialization", ref_template="#/$defs/{model}")
    for model in (found, *found["$defs"].values()):
        model.pop("title", None)
        if model["type"] == "object":
            model["additionalProperties"] = False
            for value in model["properties"].values():
                value.pop("title", None)
                value.pop("unit", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, "title": "A job's summary.json"}
