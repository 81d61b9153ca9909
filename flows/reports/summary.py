"""``jobs_dir/<job>/summary.json``: how a run of a job ended, in one JSON document for other tools.

Written whole at the end of every run, mode 0600; described in ``docs/observability.md``. Sizes are bytes, times
seconds, moments UTC; absent values are null, keys are never left out. Counts, names and sizes only, as in the record.
"""

from __future__ import annotations

import functools
import json
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import msgspec

from flows.job.inputs import JobInputs
from flows.reports.events import JobEnd
from tasks.shared.errors import StorageError
from tasks.shared.files.part_file import PartFile
from tasks.shared.http.answer import place
from tasks.shared.log import logger
from tasks.shared.report import Problem, StepReport, Waiting

NAME: Final = "summary.json"


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of a step: how many, how many again, the time that half and 95 % of them did not exceed."""

    seconds: float | None
    requests: int | None
    retries: int | None
    p50: float | None
    p95: float | None


class StepSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One step; counts are those of ``pipeline status``. ``details`` are facts of the step's own."""

    position: int
    name: str
    state: str
    files: int | None
    resources_in: int | None
    resources_out: int | None
    lines_in: int | None
    lines_out: int | None
    bytes_in: int | None
    bytes_out: int | None
    output: str | None
    statistics: Statistics
    warnings: list[str]
    details: dict[str, Any]


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Lines that the step before says it wrote, and that this step read (``4-product.md`` §5, "Reconciliation")."""

    position: int
    name: str
    written: int
    read: int
    agrees: bool


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job waits: the position of the step, and the directory for corrected files."""

    position: int
    directory: str


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The error that ended the run; ``step`` is null when it was none of a step."""

    reference: str
    message: str
    hint: str | None
    transient: bool
    step: str | None


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """Names of what the job was started with: of files and directories without their path, of a URL without query."""

    config: str
    crtdl: str | None
    input: str | None
    anonymization_config: str | None
    patients: str | None


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """What ran."""

    sluice: str
    python: str
    prefect: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A job at the end of a run, its ``run``-th. ``created`` is of the job, the other moments are the run's."""

    id: str
    state: JobEnd
    run: int
    created: str
    started: str
    ended: str
    steps: list[StepSummary]
    reconciliation: list[Compared]
    waiting: Where | None
    error: Ended | None
    inputs: Inputs
    versions: Versions


def reconciliation(steps: Iterable[StepReport]) -> list[Compared]:
    """Every comparison of lines that was made."""
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


def of_step(step: StepReport) -> StepSummary:
    """A step as the summary shows it."""
    return StepSummary(
        statistics=Statistics(**step.model_dump(include=set(Statistics.__struct_fields__))),
        warnings=list(step.warnings),
        **step.model_dump(include=set(StepSummary.__struct_fields__) - {"statistics", "warnings"}),
    )


def where(waiting: Waiting | None) -> Where | None:
    """Where the record says the job waits."""
    return Where(position=waiting.position, directory=waiting.directory) if waiting else None


def problem(error: Problem | None) -> Ended | None:
    """The error of the record, without its context: that may be a person's comment."""
    if error is None:
        return None
    return Ended(
        reference=error.reference,
        message=error.message,
        hint=error.hint,
        transient=error.transient,
        step=error.step,
    )


def inputs_of(inputs: JobInputs) -> Inputs:
    """The names of a job's inputs."""
    return Inputs(
        config=Path(inputs.config).name,
        crtdl=_name(inputs.crtdl),
        input=_name(inputs.input),
        anonymization_config=_name(inputs.anonymization_config),
        patients=_name(inputs.patients),
    )


def _name(value: str | None) -> str | None:
    if value is None:
        return None
    return place(value) if "://" in value else Path(value).name


@functools.cache
def versions() -> Versions:
    """The versions of this process."""
    return Versions(sluice=_version("sluice"), python=platform.python_version(), prefect=_version("prefect"))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def write(directory: Path, summary: Summary) -> None:
    """Write the summary; the one before it is there until this one is complete.

    Never raises: a summary that cannot be written is said in ``job.log``, and fails no run.
    """
    try:
        with PartFile(directory / NAME) as part:
            part.write(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
            part.commit()
    except StorageError as error:
        logger.warning("%s is not written: %s", NAME, error.message)


def read(directory: Path) -> Summary | None:
    """The summary of a job; ``None`` when there is none that can be read."""
    try:
        return msgspec.json.decode((directory / NAME).read_bytes(), type=Summary)
    except (OSError, msgspec.DecodeError):
        return None


def amend(directory: Path, state: JobEnd, ended: str, error: Problem | None) -> None:
    """Let the summary say that a job which waited has ended since; one that cannot be read stays as it is."""
    before = read(directory)
    if before is not None:
        write(directory, msgspec.structs.replace(before, state=state, ended=ended, waiting=None, error=problem(error)))


@functools.cache
def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the document, as kept in ``docs/schemas/summary.schema.json``."""
    (top,), components = msgspec.json.schema_components((Summary,), ref_template="#/$defs/{name}")
    for component in components.values():
        component["additionalProperties"] = False
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A job's summary.json",
        **top,
        "$defs": components,
    }


def schema_text() -> str:
    """The schema as it is kept."""
    return json.dumps(schema(), indent=2) + "\n"
