"""The job record, read from the labels of its flow run. ``writer.py`` writes them.

``4-product.md`` §4: a flow run is a job; labels ``job.*`` are for the program, artifacts are for people. Structured
values are JSON text in one label, so that they change together. The record has no payload, secret or identifier of a
person.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from flows.job.lock import is_held
from flows.job.state import JobState, job_state
from flows.job.waiting import Answer, Decision, Shown, Waiting
from flows.prefect.api import Json
from flows.shell import command
from tasks.shared.errors import InputError
from tasks.shared.report import Problem, StepReport, StoredModel

JobEnd = Literal["waiting", "completed", "failed", "stopped", "cancelled"]
"""How a run of a job ends, unless it is killed."""

AT_THE_END = "end"
"""Replaces the position for the release report at the end of the job."""


class ProgressRecord(StoredModel):
    """Progress of the running step; ``fraction`` is 0…1."""

    fraction: float | None = None
    eta_seconds: float | None = None
    message: str | None = None


class Extraction(StoredModel):
    """The handle of the extraction job (document 1, "Job data")."""

    status_url: str | None = None
    job_id: str | None = None


class JobRecord(StoredModel):
    """The record of a job."""

    id: str
    name: str
    state: JobState
    created: str | None = None
    updated: str | None = None
    config: str | None = None
    directory: str | None = None
    crtdl: str | None = None
    step_names: tuple[str, ...] = ()
    steps: tuple[StepReport, ...] = ()
    answers: dict[int, Answer] = Field(default_factory=dict)
    decisions: dict[int, Decision] = Field(default_factory=dict)
    shown: dict[int, Shown] = Field(default_factory=dict)
    """The release report at a wait, or at a step with which data leave without one."""
    shown_at_the_end: Shown | None = None
    forms: dict[int, str] = Field(default_factory=dict)
    waiting: Waiting | None = None
    error: Problem | None = None
    progress: ProgressRecord | None = None
    extraction: Extraction = Extraction()
    stopped_by: str | None = None
    reset: int | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)
    has_deployment: bool = False
    parked: bool = False
    """True if the run is paused in Prefect."""

    @classmethod
    def of(cls, run: Json) -> JobRecord:
        """Read the record out of a flow run as the API returns it."""
        labels: dict[str, Any] = run.get("labels") or {}
        parameters: dict[str, Any] = run.get("parameters") or {}

        def label(name: str) -> Any:
            return labels.get(f"job.{name}") or None

        names = tuple(str(label("steps")).split(",")) if label("steps") else ()
        places = range(1, len(names) + 1)

        def each(model: type[_M], name: str) -> dict[int, _M]:
            return {p: found for p in places if (found := _parse(model, label(f"{name}.{p}")))}

        steps = tuple(
            _parse(StepReport, label(f"step.{position}")) or StepReport(position=position, name=name)
            for position, name in enumerate(names, start=1)
        )
        decisions = each(Decision, "decision")
        shown = each(Shown, "shown")
        directory = label("directory")
        waiting = _parse(Waiting, label("waiting"))
        state = job_state(run, held=directory is not None and is_held(Path(directory)))
        at = waiting.position if waiting is not None else 0
        waits = at in places and at not in decisions and steps[at - 1].state == "waiting"
        if state is JobState.INTERRUPTED and waits:
            # Not parked, or no longer: killed before parking, or resumed with or without an answer without a worker to
            # run it. ``continue`` runs it.
            state = JobState.WAITING
        return cls(
            id=run["id"],
            name=run.get("name") or "",
            state=state,
            created=asked_for(run),
            updated=run.get("updated"),
            config=label("config") or parameters.get("config"),
            directory=directory,
            crtdl=label("crtdl"),
            step_names=names,
            steps=steps,
            answers=each(Answer, "answer"),
            decisions=decisions,
            shown=shown,
            shown_at_the_end=_parse(Shown, label(f"shown.{AT_THE_END}")),
            forms={p: str(form) for p in places if (form := label(f"form.{p}"))},
            waiting=waiting,
            error=_parse(Problem, label("error")) or _never_began(run),
            progress=_parse(ProgressRecord, label("progress")) if state is JobState.RUNNING else None,
            extraction=Extraction(status_url=label("extraction.status_url"), job_id=label("extraction.job_id")),
            stopped_by=label("stopped_by"),
            reset=label("reset"),
            parameters=parameters,
            has_deployment=bool(run.get("deployment_id")),
            parked=run.get("state_type") == "PAUSED",
        )

    def step(self, position: int) -> StepReport:
        """Return the record of the step at ``position`` (from 1)."""
        return self.steps[position - 1]

    @property
    def done(self) -> bool:
        """True if the job is complete and no step is to be run again."""
        return self.state is JobState.COMPLETED and self.reset is None

    @property
    def undecided(self) -> Waiting | None:
        """The wait that needs a decision now, if any."""
        waiting = self.waiting if self.state is JobState.WAITING else None
        return waiting if waiting and waiting.position not in self.decisions else None

    @property
    def current_step(self) -> str | None:
        """The step that runs, waits, or failed (``None`` if the error belongs to no step); else the next step."""
        if self.state is JobState.FAILED and self.error is not None:
            return self.error.step
        for step in self.steps:
            if step.state != "completed":
                return step.name
        return None

    @property
    def at(self) -> str:
        """The position of the job in words, to follow its state ("at send")."""
        if self.current_step is None:
            if self.state is JobState.FAILED:
                return ""
            return f" behind {self.steps[-1].name}" if self.steps else " before its first step"
        return f" at {self.current_step}"

    @property
    def never_began(self) -> bool:
        """True if Prefect could not begin the run, mostly because of its parameters. Continuing would fail again."""
        return self.error is not None and self.error.reference == "run-not-begun"

    @property
    def newest_report(self) -> Shown | None:
        """The latest release report: that of the end, or of the last step that has one."""
        if self.shown_at_the_end is not None:
            return self.shown_at_the_end
        return self.shown[max(self.shown)] if self.shown else None

    @property
    def newest_page(self) -> Shown | None:
        """The newest release report that could be made."""
        known = [one for _, one in sorted(self.shown.items())]
        known += [self.shown_at_the_end] if self.shown_at_the_end else []
        return next((one for one in reversed(known) if one.page), None)

    @property
    def page(self) -> Path | None:
        """The page of the newest release report."""
        newest = self.newest_page
        return Path(self.directory) / newest.page if newest and newest.page and self.directory else None

    @property
    def files(self) -> int | None:
        """Number of data files of the last finished step."""
        done = [step.files for step in self.steps if step.state == "completed" and step.files is not None]
        return done[-1] if done else None


_M = TypeVar("_M", bound=BaseModel)


def _parse(model: type[_M], text: Any) -> _M | None:
    if not isinstance(text, str) or not text:
        return None
    try:
        return model.model_validate_json(text)
    except ValidationError:
        return None


def asked_for(run: Json) -> str | None:
    """Return when a run was requested or scheduled for; a scheduler creates runs days earlier."""
    return run.get("expected_start_time" if run.get("auto_scheduled") else "created") or run.get("created")


def _never_began(run: Json) -> Problem | None:
    """Return the error of a failed run without a record: Prefect could not begin it."""
    if run.get("state_type") != "FAILED" or any(name.startswith("job.") for name in run.get("labels") or {}):
        return None
    message = str((run.get("state") or {}).get("message") or "Prefect does not say why")
    return Problem(
        reference="run-not-begun", message=message.splitlines()[0][:200], hint="look at the run in the Prefect UI"
    )


def cancelled(error: Problem | None) -> str:
    """Return the last line of the log of a cancelled job: rejected, or cancelled in the Prefect UI."""
    return f"the job is cancelled: {error.message if error is not None else 'in the Prefect UI'}"


def refuse_changed_steps(record: JobRecord, names: tuple[str, ...]) -> None:
    """Check that the job is continued with the steps it was started with.

    Raises:
        InputError: names both lists.
    """
    if record.step_names and record.step_names != names:
        raise InputError(
            "steps-changed", "pipeline.enabled_steps differ from the job's",
            context=f"job: {', '.join(record.step_names)}; configuration: {', '.join(names)}",
            hint="restore enabled_steps, or start a new job",
        )  # fmt: skip


def now() -> str:
    """Return the current time in UTC, as the record writes times."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def how_to_go_on(record: JobRecord, config: str | None) -> list[str]:
    """Return lines with the command that continues the job, if any; with ``config`` if the job's own is gone."""
    if record.never_began:
        return []
    nowhere = record.directory is None and not os.path.exists(str(record.config))  # noqa: PTH110 - an answer
    mistyped = nowhere and config is not None
    return [continue_hint(record.model_copy(update={"config": config}) if mistyped else record)]


def hint_anywhere(record: JobRecord) -> str:
    """Return the hint like ``continue_hint``, valid in any directory of the machine."""
    where = ["--set", f"jobs_dir={Path(record.directory).parent}"] if record.directory else []
    return f"continue with: {command('pipeline', 'continue', str(record.config), record.id, *where, anywhere=True)}"


def continue_hint(record: JobRecord) -> str:
    """Return the command that continues a job, with the options that decide if it waits."""
    overrides = [str(one) for one in record.parameters.get("overrides") or ()]
    where = [part for one in overrides if one.startswith("jobs_dir=") for part in ("--set", one)]
    how = "\n  You will be asked to confirm. In scripts, add --approve or --reject." if record.undecided else ""
    return f"continue with: {command('pipeline', 'continue', str(record.config), record.id, *where)}{how}"
