"""A job while this process runs it: lock, directory, logs, record, and the context of each step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from config import LoadedConfig, PipelineConfig
from flows.job.directory import JobDirectory
from flows.job.inputs import JobInputs, config_command, job_command
from flows.job.lock import PATIENCE, JobBusyError, JobLock
from flows.job.record import JobRecord, refuse_changed_steps
from flows.job.writer import RecordedHandle, RecordWriter
from flows.prefect.api import PrefectApi
from flows.prefect.artifacts import REPORT, Page
from flows.reports.job_log import job_log
from flows.reports.terminal import Presenter
from tasks.shared.files.inventory import Recorded, kept_at
from tasks.shared.log import logger
from tasks.shared.meter import Meter
from tasks.shared.report import StepReport
from tasks.shared.step import Source, Step, StepContext
from tasks.shared.stop import Stop

ENDS_WITHIN = 20.0
"""Seconds after which a process that was asked in the UI to stop has released its job."""


@dataclass
class RunningJob:
    """A job whose lock this process holds."""

    id: str
    inputs: JobInputs
    loaded: LoadedConfig
    directory: JobDirectory
    writer: RecordWriter
    presenter: Presenter
    stop: Stop = field(default_factory=Stop)
    crtdl: Path | None = None
    deployed: bool = False
    """True if a worker runs it."""
    steps: dict[int, StepReport] = field(default_factory=dict)
    ended: bool = False
    """True once the end of this run was announced."""
    page: Page = field(init=False)
    short: Page = field(init=False)
    """The short form of the release report."""

    def __post_init__(self) -> None:
        self.page = Page(self.api, self.id)
        self.short = Page(self.api, self.id, REPORT)

    @property
    def config(self) -> PipelineConfig:
        """The configuration as it is now."""
        return self.loaded.config

    @property
    def step_names(self) -> tuple[str, ...]:
        """The steps of this job, in order."""
        return self.config.pipeline.enabled_steps

    @property
    def api(self) -> PrefectApi:
        """The Prefect API that keeps the record."""
        return self.writer.api

    @classmethod
    @contextmanager
    def opened(
        cls, job_id: str, inputs: JobInputs, api: PrefectApi, presenter: Presenter, *, deployed: bool = False
    ) -> Iterator[RunningJob]:
        """Take the job's lock and open its logs.

        Raises:
            ConfigError: the configuration is not valid now.
            JobBusyError: another process runs the job, or, with ``deployed``, has ended it meanwhile.
            InputError: ``enabled_steps`` changed since the start of the job.
        """
        loaded = inputs.load()
        config = loaded.config
        directory = JobDirectory.of(config.jobs_dir, job_id)
        directory.create()
        with ExitStack() as stack:
            # A worker's run may come while the process that was suspended still ends.
            stack.enter_context(JobLock(directory.path, patience=ENDS_WITHIN if deployed else PATIENCE))
            if deployed and (api.read_run(job_id) or {}).get("state_type") != "RUNNING":
                raise JobBusyError("job-busy", "the run ended while another process had the job", context=job_id)
            stack.enter_context(job_log(directory.log))
            writer = RecordWriter(api, job_id)
            record = writer.read()
            if finish_reset(record, directory, writer):
                record = writer.read()
            names = config.pipeline.enabled_steps
            refuse_changed_steps(record, names)
            job = cls(
                id=job_id,
                inputs=inputs,
                loaded=loaded,
                directory=directory,
                writer=writer,
                presenter=presenter,
                deployed=deployed,
                steps={step.position: step for step in record.steps},
            )
            yield job

    def prepare(self) -> None:
        """Write the requirements of all steps: the record's head and the effective CRTDL."""
        self.crtdl, doubts = self.inputs.effective_crtdl(self.config, self.directory.path)
        for position, name in enumerate(self.step_names, start=1):
            self.steps.setdefault(position, StepReport(position=position, name=name))
        for warning in (*doubts, *(found.render() for found in self.loaded.warnings)):
            logger.warning("%s", warning)
        logger.info("job %s runs in process %d: %s", self.id, os.getpid(), ", ".join(self.step_names))
        self.writer.set(
            config=self.inputs.config,
            directory=str(self.directory.path),
            steps=",".join(self.step_names),
            crtdl=str(self.crtdl) if self.crtdl else None,
            error=None,
            stopped_by=None,
            waiting=None,
            progress=None,
        )

    def context(self, position: int, step: Step, source: Source | None) -> StepContext:
        """Return the context of the step at ``position``."""
        about = partial(config_command, self.inputs)
        return StepContext(
            config=self.config,
            job_id=self.id,
            job_dir=self.directory.path,
            position=position,
            name=step.name,
            given=replace(self.inputs.step_inputs(), crtdl=self.crtdl),
            given_crtdl=self.inputs.step_inputs().crtdl,
            source=source,
            handle=RecordedHandle(self.writer, about),
            meter=Meter(),
            stop=self.stop,
            command=about,
            again=self.run_again,
        )

    @property
    def continued_with(self) -> str:
        """The command that continues the job, for a log or a page."""
        return self.command("pipeline continue")

    def command(self, verb: str, *rest: str) -> str:
        """Return a command about this job that works from any directory."""
        return job_command(self.inputs, self.config, self.directory.path, verb, *rest)

    def run_again(self, position: int) -> str:
        """Return the command that runs a step of this job and all later ones again, from any directory."""
        return self.command("pipeline continue", "--from", str(position))

    def record(self) -> JobRecord:
        """Return the record as last read, with this process's current state of the steps."""
        steps = tuple(self.steps[position] for position in sorted(self.steps))
        return self.writer.cached().model_copy(update={"steps": steps})

    def written(self, position: int, *, tables: bool) -> Source:
        """Return the data that a finished step wrote, as the next one reads it."""
        step = self.steps[position]
        kept = kept_at(self.directory.path, position)
        return Source(
            path=self.directory.path / str(step.output),
            lines=step.lines_out,
            tables=tables,
            recorded=Recorded(step.name, position, kept, step.inventory) if step.inventory else None,
        )


def finish_reset(record: JobRecord, directory: JobDirectory, writer: RecordWriter) -> bool:
    """Carry out a reset that is in the record. It was recorded before anything was removed, so it can be repeated."""
    if record.reset is None:
        return False
    directory.reset(record.steps, record.reset)
    cleared = [f"step__{step.position}" for step in record.steps if step.position >= record.reset]
    writer.set(**dict.fromkeys(cleared), reset=None)
    return True
