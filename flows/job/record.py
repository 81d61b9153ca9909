"""The record of a job: the labels ``job.*`` of its flow run (docs/decisions/05-labels-are-the-record.md).

A structured value is JSON text in one label, so that its parts change together. An empty text clears a label: after a
null, Prefect could no longer list the run. The record has no payload, secret or identifier of a person.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from flows.job.lock import is_held
from flows.job.problem import Problem
from flows.job.state import JobState, job_state
from flows.job.waiting import Answer, Decision, Shown, Waiting
from flows.prefect.api import Json, Label, PrefectApi
from flows.shell import command
from tasks.shared.errors import InputError
from tasks.shared.report import StepReport, StoredModel
from tasks.shared.step import Handle, HandleStore

Value = Label | BaseModel | None
_M = TypeVar("_M", bound=BaseModel)


class ProgressRecord(StoredModel):
    """Progress of the running step; ``fraction`` is 0…1."""

    fraction: float | None = None
    eta_seconds: float | None = None
    message: str | None = None


class JobRecord(StoredModel):
    """The record as it was read. ``in_prefect`` is Prefect's type of the run's state."""

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
    waiting: Waiting | None = None
    error: Problem | None = None
    progress: ProgressRecord | None = None
    extraction: Handle | None = None
    stopped_by: str | None = None
    reset: int | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)
    has_deployment: bool = False
    in_prefect: str | None = None

    @classmethod
    def of(cls, run: Json, state: JobState | None = None) -> JobRecord:
        """Read the record of a flow run as the API returns it. ``state`` is given by the process that runs the job."""
        labels = {name.removeprefix("job."): value for name, value in (run.get("labels") or {}).items() if value != ""}
        parameters: dict[str, Any] = run.get("parameters") or {}
        names = tuple(str(labels["steps"]).split(",")) if labels.get("steps") else ()

        def each(model: type[_M], kind: str) -> dict[int, _M]:
            found = {at: _parse(model, labels.get(f"{kind}.{at}")) for at in range(1, len(names) + 2)}
            return {at: value for at, value in found.items() if value is not None}

        reports = each(StepReport, "step")
        directory, url = labels.get("directory"), labels.get("extraction.status_url")
        state = state or job_state(run, held=directory is not None and is_held(Path(str(directory))))
        return cls(
            id=run["id"],
            name=run.get("name") or "",
            state=state,
            created=_asked_for(run),
            updated=run.get("updated"),
            config=labels.get("config") or parameters.get("config"),
            directory=directory,
            crtdl=labels.get("crtdl"),
            step_names=names,
            steps=tuple(reports.get(at) or StepReport(position=at, name=name) for at, name in enumerate(names, 1)),
            answers=each(Answer, "answer"),
            decisions=each(Decision, "decision"),
            shown=each(Shown, "shown"),
            waiting=_parse(Waiting, labels.get("waiting")),
            error=_parse(Problem, labels.get("error")) or _never_began(run),
            progress=_parse(ProgressRecord, labels.get("progress")) if state is JobState.RUNNING else None,
            extraction=Handle(url, labels["extraction.job_id"]) if url else None,
            stopped_by=labels.get("stopped_by"),
            reset=labels.get("reset"),
            parameters=parameters,
            has_deployment=bool(run.get("deployment_id")),
            in_prefect=run.get("state_type"),
        )

    @property
    def done(self) -> bool:
        """True if the job is complete and no step is to be run again."""
        return self.state is JobState.COMPLETED and self.reset is None

    @property
    def undecided(self) -> Waiting | None:
        """The wait that needs a decision now, if any."""
        return self.waiting if self.state in {JobState.WAITING, JobState.DECIDED} else None

    @property
    def current_step(self) -> str | None:
        """The step that runs, waits, or failed (``None`` if the error belongs to no step); else the next step."""
        if self.state is JobState.FAILED and self.error is not None:
            return self.error.step
        return next((step.name for step in self.steps if step.state != "completed"), None)

    @property
    def never_began(self) -> bool:
        """True if Prefect could not begin the run, mostly because of its parameters. Continuing would fail again."""
        return self.error is not None and self.error.reference == "run-not-begun"

    @property
    def files(self) -> int | None:
        """Number of data files of the last finished step."""
        done = [step.files for step in self.steps if step.state == "completed" and step.files is not None]
        return done[-1] if done else None

    @property
    def reports(self) -> list[Shown]:
        """The release reports, oldest first, including those that could not be made."""
        return [one for _, one in sorted(self.shown.items())]

    @property
    def shown_at_the_end(self) -> Shown | None:
        """The release report at the end of the job, which follows the last step."""
        return self.shown.get(len(self.steps) + 1)

    @property
    def newest_page(self) -> Shown | None:
        """The newest release report that has a page."""
        return next((one for one in reversed(self.reports) if one.page), None)

    @property
    def page(self) -> Path | None:
        """The page of the newest release report."""
        newest = self.newest_page
        return Path(self.directory) / newest.page if newest and newest.page and self.directory else None


class RecordWriter:
    """The one writer of a job's labels in this process. Every write is durable when it returns.

    ``mirror`` gets the record after each write. ``state`` is the job's while this process runs it, else ``None``.
    """

    def __init__(self, api: PrefectApi, job_id: str, mirror: Callable[[JobRecord], None] = lambda _: None) -> None:
        self.api = api
        self.job_id = job_id
        self.state: JobState | None = None
        self._mirror = mirror
        self._run: Json = {}
        self._lock = threading.Lock()

    def read(self) -> JobRecord:
        """Return the record as it is now. Raises ``LookupError`` if the run is gone."""
        with self._lock:
            run = self.api.read_run(self.job_id)
            if run is None:
                raise LookupError(self.job_id)
            self._run = run
        return self.known()

    def known(self) -> JobRecord:
        """Return the record as last read, with the later writes of this process."""
        return JobRecord.of(self._run, self.state) if self._run else self.read()

    def write(self, changes: Mapping[str, Value], by: PrefectApi | None = None) -> None:
        """Write labels ``job.<name>``, with the client ``by`` if given. ``None`` clears a label."""
        labels = {f"job.{name}": _label(value) for name, value in changes.items()}
        with self._lock:
            (by or self.api).set_labels(self.job_id, labels)
            self._run = self._run | {"labels": (self._run.get("labels") or {}) | labels}
            if "id" in self._run:
                self._mirror(JobRecord.of(self._run, self.state))

    def reset_from(self, record: JobRecord, position: int) -> None:
        """Record in one write that the step at ``position`` and all later ones are to run again.

        The files of these steps are removed later, when the flow begins. That can be repeated after a kill.
        """
        later = range(position, len(record.steps) + 2)
        gone = [at(kind, n) for n in later for kind in ("answer", "decision", "shown")]
        gone += ["waiting", "error", "stopped_by"]
        gone += ["extraction.status_url", "extraction.job_id"] if position == 1 else []
        self.write(dict.fromkeys(gone) | {"reset": position})


class RecordedHandle(HandleStore):
    """The extraction handle in the job record: read on ``load``, durable when ``save`` returns."""

    def __init__(self, writer: RecordWriter) -> None:
        super().__init__()
        self._writer = writer

    def load(self) -> Handle | None:
        """Return the handle in the record."""
        return self._writer.read().extraction

    def save(self, handle: Handle | None) -> None:
        """Write the handle, or clear it."""
        url, job_id = (handle.status_url, handle.job_id) if handle else (None, None)
        self._writer.write({"extraction.status_url": url, "extraction.job_id": job_id})


def at(kind: str, position: int) -> str:
    """Return the name of a label for the step at ``position``."""
    return f"{kind}.{position}"


def _label(value: Value) -> Label:
    if value is None:
        return ""
    if isinstance(value, StepReport):
        return value.label()
    return value.model_dump_json() if isinstance(value, BaseModel) else value


def _parse(model: type[_M], text: Any) -> _M | None:
    try:
        return model.model_validate_json(text) if text else None
    except (ValidationError, TypeError):
        return None


def _asked_for(run: Json) -> str | None:
    """Return when a run was requested, or the time of a scheduled one, which Prefect creates days earlier."""
    return run.get("expected_start_time" if run.get("auto_scheduled") else "created") or run.get("created")


def _never_began(run: Json) -> Problem | None:
    """Return the error of a failed run without a record: Prefect could not begin it."""
    if run.get("state_type") != "FAILED" or any(name.startswith("job.") for name in run.get("labels") or {}):
        return None
    message = str((run.get("state") or {}).get("message") or "Prefect gives no reason")
    return Problem(
        reference="run-not-begun", message=message.splitlines()[0][:200], hint="look at the run in the Prefect UI"
    )


def now() -> str:
    """Return the current time in UTC, as the record writes times."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def refuse_changed_steps(record: JobRecord, names: tuple[str, ...]) -> None:
    """Raise ``InputError`` if the job was started with other steps."""
    if record.step_names and record.step_names != names:
        raise InputError(
            "steps-changed", "pipeline.enabled_steps differ from the job's",
            context=f"job: {', '.join(record.step_names)}; configuration: {', '.join(names)}",
            hint="restore enabled_steps, or start a new job",
        )  # fmt: skip


def continue_hint(record: JobRecord) -> str:
    """Return the command that continues a job and, if the job waits, how to decide."""
    line = f"continue with: {continue_command(record)}"
    if (waiting := record.undecided) is None:
        return line
    shown = record.shown.get(waiting.position)
    comment = " --comment TEXT" if shown is not None and shown.needs_comment else ""
    return f"{line}\n  The command asks for your decision. In scripts, add --approve{comment} or --reject."


def continue_command(record: JobRecord, *rest: str) -> str:
    """Return the command that continues a job. It repeats an override of ``jobs_dir``, where the job is found."""
    overrides = map(str, record.parameters.get("overrides") or ())
    where = [part for one in overrides if one.startswith("jobs_dir=") for part in ("--set", one)]
    return command("pipeline", "continue", record.config or "CONFIG", record.id, *rest, *where)
