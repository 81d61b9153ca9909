"""Record and announce the start and end of each step, and the end of the run.

``Sources`` holds the data each step reads (``4-product.md`` §4, "What a step reads"), the data sent, and the
destinations.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from config import PipelineConfig
from flows.job.job import RunningJob
from flows.job.record import JobEnd, cancelled, now
from flows.job.waiting import Waiting
from flows.job.watch import Watcher
from flows.prefect.api import Label
from tasks import declared
from tasks.shared.errors import GateError, SluiceError
from tasks.shared.log import logger
from tasks.shared.report import Corrections, Problem, StepReport
from tasks.shared.step import Reads, Source, Step, StepContext

StepEnd = Literal["waiting", "failed", "stopped"]
"""How a step ends that is not complete."""


@contextmanager
def recorded_as_running(job: RunningJob, context: StepContext) -> Iterator[None]:
    """Record that a step runs, and watch it."""
    position = context.position
    before = job.steps[position]
    if before.state != "completed":
        job.steps[position] = StepReport(
            position=position,
            name=context.name,
            state="running",
            started=before.started or now(),
            directory=before.directory,
        )
        job.writer.step(job.steps[position])
        logger.info("step %d %s begins", position, context.name)
    job.presenter.step_started(position, context.name)
    watcher = Watcher(job.writer, job.page, job.stop, job.presenter.progress)
    with watcher.watching(context.name, position, context.meter):
        yield


def finish_step(job: RunningJob, context: StepContext, report: StepReport, *, expected: int | None) -> None:
    """Record a step's report and announce it once, also when the step answered from its stored result.

    Args:
        expected: How many lines the step before reported.
    """
    position, name = context.position, context.name
    known = job.steps[position]
    before = known.state == "completed"
    of_this_instance = {
        "position": position,
        "name": name,
        "state": "completed",
        "started": known.started,
        "directory": known.directory,
        "lines_expected": expected,
    }
    if before and known.inventory:
        of_this_instance["inventory"] = known.inventory  # that of the record, not of a file
    step = job.steps[position] = report.model_copy(update=of_this_instance)
    if not before:
        job.writer.step(step, progress=None)
        logger.info("step %d %s is complete: %s", position, name, step.summary())
        already_logged = context.meter.snapshot().warnings
        for warning in step.warnings:
            if warning not in already_logged:
                logger.warning("step %d %s: %s", position, name, warning)
    job.presenter.step_finished(step, again=before)


def leave_step(
    job: RunningJob, position: int, state: StepEnd, *, error: Problem | None = None, **labels: Label | Waiting | None
) -> None:
    """Record that a step did not finish, together with other labels."""
    _announce_unfinished(job, position, state)
    also: dict[str, Any] = labels | ({"error": error} if error else {})
    job.writer.step(job.steps[position], progress=None, **also)


def _announce_unfinished(job: RunningJob, position: int, state: StepEnd) -> None:
    if state == "stopped" and job.steps[position].state == "completed":
        return  # the stop met it while it answered from its stored result
    step = job.steps[position] = job.steps[position].model_copy(update={"state": state})
    logger.info("step %d %s: %s", position, step.name, state)


def record_failure(job: RunningJob, position: int | None, error: SluiceError) -> Problem:
    """Record the error that ends this run of the job, at a step or outside of them, and return its record."""
    name = job.step_names[position - 1] if position else None
    logger.error("%s", error.render())
    record = Problem.of(error, step=name)
    if position:
        _announce_unfinished(job, position, "failed")
    # Announced first: it may be the Prefect API that has failed. Once: it may have failed at this, too.
    if not job.ended:
        announce_end(job, "failed", error=record)
    if position:
        job.writer.step(job.steps[position], progress=None, error=record)
    else:
        job.writer.set(error=record, progress=None)
    return record


def hold_back(job: RunningJob, position: int, error: GateError) -> None:
    """Record that a gate ends the job, at a step that is complete or has not begun."""
    logger.error("%s", error.render())
    record = Problem.of(error, step=job.step_names[position - 1])
    announce_end(job, "failed", error=record)
    job.writer.set(error=record, progress=None)


def announce_end(
    job: RunningJob,
    state: JobEnd,
    *,
    error: Problem | None = None,
    waiting: Waiting | None = None,
    reason: str | None = None,
) -> None:
    """Log how this run ends."""
    job.ended = True
    level, words = _last_line(job, state, error, waiting, reason)
    logger.log(level, "%s", words)


def _last_line(
    job: RunningJob, state: JobEnd, error: Problem | None, waiting: Waiting | None, reason: str | None
) -> tuple[int, str]:
    """Return the level and text of the last line in the log of a run."""
    go_on = f"continue with: {job.continued_with}"
    match state:
        case "completed":
            return logging.INFO, "the job is complete"
        case "waiting" if waiting is not None:
            return logging.INFO, f"the job waits at step {waiting.position} for a person's decision; {go_on}"
        case "cancelled":
            return logging.WARNING, cancelled(error)
        case "failed" if error is not None:
            where = f"step {error.step}" if error.step else "preparation"
            return logging.ERROR, f"the job is failed: {error.reference} in {where}; {go_on}"
    return logging.WARNING, f"the job is stopped ({reason}); {go_on}"


class Sources:
    """The data in the directory of a job while its steps finish one after the other.

    ``newest`` is the output of the nearest earlier step, ``resources`` the newest output that is not tables.
    """

    def __init__(self, steps: Sequence[str], config: PipelineConfig) -> None:
        self._steps = [declared(name) for name in steps]
        self._config = config
        self.newest: Source | None = None
        self.resources: Source | None = None

    def wrote(self, source: Source) -> None:
        """Record the output of a step."""
        self.newest = source
        self.resources = self.resources if source.tables else source

    def read_by(self, step: Step) -> Source | None:
        """Return the data that a step reads now."""
        of = {Reads.NOTHING: None, Reads.LATEST: self.newest, Reads.RESOURCES: self.resources}
        return of[step.reads(self._config)]

    def data_sent_after(self, position: int) -> Source | None:
        """Return the data that are sent after ``position`` as they are; ``None`` if a step changes them before."""
        step = self.delivery(position)
        return self.read_by(step) if step is not None else None

    def delivery(self, position: int) -> Step | None:
        """Return the step after ``position`` that sends the data unchanged; ``None`` if a step changes them before."""
        for step in self._steps[position:]:
            if step.delivers:
                return step
            if step.output is not None:
                return None
        return None

    def asks_before_delivery(self) -> bool:
        """Return whether a person reviews the data that are sent."""
        return any(step.is_wait and self.delivery(at) is not None for at, step in enumerate(self._steps, start=1))

    def readers(self, position: int) -> list[int]:
        """Return the positions of the steps that read the data released at ``position``, up to the next wait for the
        same data.
        """
        found: list[int] = []
        made: list[Step] = []  # by steps before, of that data
        for at, step in enumerate(self._steps[position:], start=position + 1):
            if step.is_wait and not made:
                break
            resources = step.reads(self._config) is Reads.RESOURCES and all(one.tables for one in made)
            if not step.is_wait and (not made or resources):
                found.append(at)
            if step.output is not None:
                made.append(step)
        return found

    def corrections(self, position: int) -> Corrections:
        """Return which corrected files a wait at ``position`` can take."""
        if self.newest is None or not self.newest.tables:
            return Corrections.NDJSON
        leaving = self.data_sent_after(position)
        return Corrections.NOT_SENT if leaving is not None and leaving is not self.newest else Corrections.TABLES


def destinations(config: PipelineConfig, position: int) -> list[tuple[str, str]]:
    """Return name and target of the steps that send data, from the wait at ``position`` (from 1) to the next wait."""
    behind = itertools.takewhile(lambda step: not step.is_wait, map(declared, config.pipeline.enabled_steps[position:]))
    return [(step.name, service.destination) for step in behind for service in step.services(config)]
