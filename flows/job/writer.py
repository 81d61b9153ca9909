"""Write the job record: the labels ``job.*`` of a flow run, as ``record.py`` reads them.

A label is durable when the call that sets it returns, and is set before the thing it guards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pydantic import BaseModel

from flows.job.record import AT_THE_END, JobRecord
from flows.prefect.api import Json, Label, PrefectApi
from tasks.shared.errors import TerminalError
from tasks.shared.report import StepReport
from tasks.shared.step import Handle, HandleStore, about_the_configuration


class RecordWriter:
    """Writer of one job's labels. Every method is durable when it returns."""

    def __init__(self, api: PrefectApi, job_id: str) -> None:
        self.api = api
        self.job_id = job_id
        self._run: Json | None = None
        self._lock = threading.Lock()

    def read(self) -> JobRecord:
        """Return the record as it is now.

        Raises:
            LookupError: the run is gone.
        """
        with self._lock:
            run = self._run = self.api.read_run(self.job_id)
        if run is None:
            raise LookupError(self.job_id)
        return JobRecord.of(run)

    def cached(self) -> JobRecord:
        """Return the record as last read, with later writes of this process, the only one that runs the job."""
        return JobRecord.of(self._run) if self._run is not None else self.read()

    def set(self, **labels: Label | BaseModel | None) -> bool:
        """Set labels ``job.<name>``; ``__`` in a name means a dot; ``None`` clears. ``False``: the run is gone."""
        written = {f"job.{name.replace('__', '.')}": _label(value) for name, value in labels.items()}
        with self._lock:
            there = self.api.set_labels(self.job_id, written)
            if self._run is not None:
                self._run = self._run | {"labels": (self._run.get("labels") or {}) | written}
        return there

    def step(self, step: StepReport, **also: Label | BaseModel | None) -> None:
        """Record a step's state and counts, together with other labels."""
        self.set(**{f"step__{step.position}": step}, **also)

    def reset_from(self, record: JobRecord, position: int) -> None:
        """Record that the step at ``position`` and all later ones are to be done anew.

        In one write, before anything on the disk is removed: that happens when the flow begins.
        """
        later = range(position, len(record.steps) + 1)
        gone = [f"{kind}__{n}" for n in later for kind in ("answer", "decision", "form", "shown")]
        gone += [f"shown__{AT_THE_END}", "waiting", "error", "stopped_by"]
        if position == 1:
            gone += ["extraction__status_url", "extraction__job_id"]
        self.set(**dict.fromkeys(gone), reset=position)


class RecordedHandle(HandleStore):
    """The extraction handle in the job record: read on ``load``, durable when ``save`` returns."""

    def __init__(self, writer: RecordWriter, command: Callable[..., str] = about_the_configuration) -> None:
        """Set the maker of commands about the configuration."""
        super().__init__()
        self._writer = writer
        self._command = command

    def load(self) -> Handle | None:
        """Return the handle in the record."""
        known = self._writer.read().extraction
        return Handle(known.status_url, known.job_id) if known.status_url and known.job_id else None

    def save(self, handle: Handle | None) -> None:
        """Write the handle into the labels ``job.extraction.*``, or clear them.

        Raises ``TerminalError`` (``job-unknown``) if the run was deleted.
        """
        there = self._writer.set(
            extraction__status_url=handle.status_url if handle else None,
            extraction__job_id=handle.job_id if handle else None,
        )
        if handle and not there:
            raise TerminalError(
                "job-unknown", "the record of this job was removed while it ran", context=self._writer.job_id,
                hint="this ends the extraction that was submitted for it: "
                + self._command("extraction cancel", handle.job_id),
            )  # fmt: skip


def _label(value: Label | BaseModel | None) -> Label:
    if value is None:
        return ""
    if isinstance(value, StepReport):
        return value.label()
    return value.model_dump_json() if isinstance(value, BaseModel) else value
