"""A job while this process holds its lock: open and prepare it, and record the begin and end of its steps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from config import LoadedConfig, PipelineConfig
from flows.job.directory import JobDirectory
from flows.job.inputs import JobInputs
from flows.job.lock import JobBusyError, job_lock
from flows.job.parts import dividing
from flows.job.record import (
    JobRecord,
    RecordedHandle,
    RecordWriter,
    at,
    continue_command,
    now,
    refuse_changed_steps,
)
from flows.job.state import JobState
from flows.job.watch import Watch
from flows.prefect.api import PrefectApi
from flows.prefect.artifacts import JOB, REPORT, Artifact, best_effort
from flows.reports.job_log import job_log
from flows.reports.page import page_of
from flows.reports.status import status_of
from flows.reports.terminal import Presenter
from flows.shell import command
from tasks.shared.files.inventory import Recorded, kept_at
from tasks.shared.log import logger
from tasks.shared.meter import Meter
from tasks.shared.report import StepReport
from tasks.shared.step import Source, Step, StepContext
from tasks.shared.stop import Stop

ENDS_WITHIN: Final = 20.0
"""Seconds within which a process releases its job after a person requested a stop in the UI."""


@dataclass
class RunningJob:
    """A job whose lock this process holds; ``position`` is its current step, 0 before the first."""

    id: str
    inputs: JobInputs
    loaded: LoadedConfig
    directory: JobDirectory
    writer: RecordWriter
    presenter: Presenter
    stop: Stop
    watch: Watch
    page: Artifact
    short: Artifact
    """The short form of the release report."""
    crtdl: Path | None = None
    position: int = 0

    @property
    def config(self) -> PipelineConfig:
        """The configuration as read at the beginning of this run."""
        return self.loaded.config

    @property
    def api(self) -> PrefectApi:
        """The Prefect API that keeps the record."""
        return self.writer.api

    @property
    def step_names(self) -> tuple[str, ...]:
        """The steps of this job, in order."""
        return self.config.pipeline.enabled_steps

    @property
    def step_name(self) -> str | None:
        """The name of the current step."""
        return self.step_names[self.position - 1] if self.position else None

    def record(self) -> JobRecord:
        """Return the record as it is now."""
        return self.writer.known()

    @property
    def steps(self) -> dict[int, StepReport]:
        """The record of each step by its position."""
        return {step.position: step for step in self.record().steps}

    def show(self) -> None:
        """Publish the job's page."""
        with best_effort("the page of the job"):
            self.page.publish(*page_of(self.record()))

    @classmethod
    @contextmanager
    def opened(
        cls, job_id: str, inputs: JobInputs, api: PrefectApi, presenter: Presenter, stop: Stop
    ) -> Iterator[RunningJob]:
        """Read the configuration, take the job's lock, and open its log.

        Raises ``JobBusyError`` if another process runs the job, or has meanwhile ended the run of a deployment.
        """
        loaded = inputs.load()
        directory = JobDirectory.of(loaded.config.jobs_dir, job_id)
        directory.create()
        with ExitStack() as stack:
            # A worker may begin a resumed run before the suspended process has ended. A command holds the lock already.
            stack.enter_context(job_lock(directory.path, patience=ENDS_WITHIN))
            writer = RecordWriter(api, job_id, mirror=lambda record: directory.mirror(status_of(record)))
            writer.state = JobState.RUNNING
            record = writer.read()
            if record.has_deployment and record.in_prefect != "RUNNING":
                raise JobBusyError("job-busy", "the run ended while another process had the job", context=job_id)
            stack.enter_context(job_log(directory.path / "job.log"))
            if record.reset is not None:  # the label stays until all is removed: a kill only delays the reset
                directory.reset(record.steps, record.reset)
                steps = range(record.reset, len(record.steps) + 1)
                writer.write({at("step", position): None for position in steps} | {"reset": None})
            refuse_changed_steps(record, loaded.config.pipeline.enabled_steps)
            yield cls(
                id=job_id, inputs=inputs, loaded=loaded, directory=directory, writer=writer, presenter=presenter,
                stop=stop, watch=Watch(writer, stop, presenter.progress), page=Artifact(api, job_id, JOB),
                short=Artifact(api, job_id, REPORT),
            )  # fmt: skip

    def prepare(self) -> None:
        """Write the effective CRTDL and the labels about the whole job; clear those of an earlier run's end."""
        self.crtdl, doubts = self.inputs.effective_crtdl(self.config, self.directory.path)
        for warning in (*doubts, *(found.render() for found in self.loaded.warnings)):
            logger.warning("%s", warning)
        logger.info("job %s runs in process %d: %s", self.id, os.getpid(), ", ".join(self.step_names))
        self.writer.write({
            "config": self.inputs.config,
            "directory": str(self.directory.path),
            "steps": ",".join(self.step_names),
            "crtdl": str(self.crtdl) if self.crtdl else None,
        } | dict.fromkeys(("error", "stopped_by", "waiting", "progress")))  # fmt: skip

    def context(self, step: Step, source: Source | None) -> StepContext:
        """Return the context of the current step."""
        given = self.inputs.step_inputs()
        return StepContext(
            config=self.config,
            job_id=self.id,
            job_dir=self.directory.path,
            position=self.position,
            name=step.name,
            given=replace(given, crtdl=self.crtdl),
            source=source,
            handle=RecordedHandle(self.writer),
            meter=Meter(),
            stop=self.stop,
            command=lambda verb, *rest: command(*verb.split(), self.inputs.config, *rest),
            again=lambda position: continue_command(self.record(), "--from", str(position)),
            divide=dividing(self.inputs) if self.config.pipeline.parts > 1 else None,
        )

    @contextmanager
    def step_running(self, context: StepContext) -> Iterator[None]:
        """Record that the current step runs, and watch it."""
        begun = self.steps[self.position]
        running = begun.model_copy(update={"state": "running", "started": begun.started or now()})
        self.writer.write({at("step", self.position): running})
        logger.info("step %d %s begins", self.position, context.name)
        self.presenter.step_started()
        with self.watch.step(self.position, context.name, context.meter):
            yield

    def step_complete(self, context: StepContext, report: StepReport) -> StepReport:
        """Record the report of the current step, which makes it complete, and announce it."""
        begun = self.steps[self.position]
        step = report.model_copy(update={
            "position": self.position, "name": context.name, "state": "completed", "started": begun.started,
            "directory": begun.directory,
        })  # fmt: skip
        self.writer.write({at("step", self.position): step, "progress": None})
        logger.info("step %d %s is complete: %s", self.position, context.name, step.summary())
        logged = context.meter.snapshot().warnings
        for warning in step.warnings:
            if warning not in logged:
                logger.warning("step %d %s: %s", self.position, context.name, warning)
        self.presenter.step_finished(step, again=False)
        return step

    def written(self, position: int, *, tables: bool) -> Source:
        """Return the data that a finished step wrote, as the source of later steps."""
        report, kept = self.steps[position], kept_at(self.directory.path, position)
        return Source(
            path=self.directory.path / str(report.output),
            lines=report.lines_out,
            tables=tables,
            recorded=Recorded(report.name, report.position, kept, report.inventory) if report.inventory else None,
        )
