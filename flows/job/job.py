"""One job while this process runs it: its lock, directory, logs and record, and how each step is run in it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tenacity

from config import LoadedConfig, PipelineConfig
from flows.engine.api import Label, PrefectApi
from flows.engine.artifacts import REPORT, Page
from flows.engine.reached import own_server
from flows.engine.reserve import keep_reserve
from flows.gate import rules
from flows.gate.sight import NEXT, Sight, no_longer, without_file_names
from flows.job.directory import JobDirectory
from flows.job.inputs import JobInputs, config_command, job_command
from flows.job.lock import JobBusyError, JobLock
from flows.job.record import (
    JobRecord,
    RecordedHandle,
    RecordWriter,
    cancelled,
    decisions_of,
    newest_page,
    newest_types,
    next_run,
    now,
    refuse_changed_steps,
    without_names_of,
)
from flows.job.sources import Sources
from flows.job.watch import CANCEL, Watcher
from flows.reports import summary
from flows.reports.events import Gate, JobEnd, StepEnd, Wait
from flows.reports.events import Step as StepEvent
from flows.reports.job_log import job_log
from flows.reports.journal import AnnouncedHandle, Journal
from flows.reports.presenter import Presenter
from tasks import declared
from tasks.release_report.page.words import Words
from tasks.shared.corrections import make_directory, wait_directory
from tasks.shared.errors import GateError, SluiceError
from tasks.shared.files.inventory import Inventory, Recorded, kept_at
from tasks.shared.log import logger
from tasks.shared.meter import Meter
from tasks.shared.publication import technical
from tasks.shared.report import Approval, Corrections, Problem, Shown, StepReport, Waiting
from tasks.shared.step import Source, Step, StepContext
from tasks.shared.stop import Stop
from tasks.shared.units import human_seconds

if TYPE_CHECKING:
    from tasks.release_report.report.make import Measures


NAMED_BY_THE_LOG = "the file names are in job.log"

ENDS_WITHIN = 20.0
"""Seconds after which a process that was asked in the UI to stop has given its job back."""


@dataclass
class Job:
    """A job this process holds the lock of."""

    id: str
    inputs: JobInputs
    loaded: LoadedConfig
    directory: JobDirectory
    writer: RecordWriter
    presenter: Presenter
    journal: Journal
    stop: Stop = field(default_factory=Stop)
    crtdl: Path | None = None
    approvals: dict[int, Approval] = field(default_factory=dict)
    reviews: dict[int, Approval] = field(default_factory=dict)
    """The first of two decisions."""
    shown: dict[int, Shown] = field(default_factory=dict)
    """The release report that a decision, or a way out without one, rests on."""
    at_the_end: Shown | None = None
    """The one at the end of the job."""
    measured: tuple[str, Measures] | None = None
    """What was measured last for a report, and of what."""
    forms: dict[int, str] = field(default_factory=dict)
    steps: dict[int, StepReport] = field(default_factory=dict)
    seen: dict[int, str] = field(default_factory=dict)
    """The digest of what was there when a wait was parked."""
    sight: Sight | None = None
    there: Inventory = field(default_factory=lambda: Inventory(()))
    again: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    until: int | None = None
    said: tuple[str, ...] = ()
    """What the step that ran last warned of while it ran; that is in the log."""
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
    ) -> Iterator[Job]:
        """Take the job's lock and open its logs.

        Raises:
            ConfigError: the configuration is not valid now.
            JobBusyError: another process runs the job, or of one that is ``deployed`` has ended it meanwhile.
            InputError: ``enabled_steps`` are not what the job was started with.
        """
        loaded = inputs.load()
        config = loaded.config
        directory = JobDirectory.of(config.jobs_dir, job_id)
        directory.create()
        home = own_server(config.jobs_dir, api.address.url)
        if shared := home is None:
            api.bridge()
        else:
            keep_reserve(home)
        with ExitStack() as stack:
            lock = JobLock(directory.path, bridges=shared)
            if deployed:
                follow(lock, api, job_id)
            stack.enter_context(lock)
            stack.enter_context(job_log(directory.log))
            writer = RecordWriter(api, job_id)
            record = writer.read()
            if finish_reset(record, directory, writer):
                record = writer.read()
            names = config.pipeline.enabled_steps
            run = next_run(record)
            writer.set(run=run)
            journal = stack.enter_context(Journal.opened(directory.path, job_id, names, run))
            refuse_changed_steps(record, names)
            job = cls(
                id=job_id,
                inputs=inputs,
                loaded=loaded,
                directory=directory,
                writer=writer,
                presenter=presenter,
                journal=journal,
                approvals=dict(record.approvals),
                reviews=dict(record.reviews),
                at_the_end=record.shown_at_the_end,
                shown=dict(record.shown),
                forms=dict(record.forms),
                seen=dict(record.seen),
                steps={step.position: directory.known(step) for step in record.steps},
                until=record.until,
            )
            job.stop.fence = lock.fence
            yield job

    def prepare(self) -> None:
        """Write what every step may rely on: the record's head and the effective CRTDL."""
        attached = self.writer.known().extraction.job_id is not None
        self.crtdl, doubts = self.inputs.effective_crtdl(self.config, self.directory.path, attached=attached)
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
        """What the step at ``position`` gets."""
        about = partial(config_command, self.inputs)
        return StepContext(
            config=self.config,
            job_id=self.id,
            job_dir=self.directory.path,
            position=position,
            name=step.name,
            given=replace(self.inputs.given(), crtdl=self.crtdl),
            given_crtdl=self.inputs.given().crtdl,
            source=source,
            approved=self.there if step.asks and position in self.approvals else None,
            corrections=self.sight.corrections if self.sight and step.asks else Corrections.NDJSON,
            handle=AnnouncedHandle(RecordedHandle(self.writer, about), self.journal.tell),
            meter=Meter(collector=self.journal.tell),
            stop=self.stop,
            command=about,
            again=self.run_again,
        )

    @property
    def continued_with(self) -> str:
        """The command that goes on with the job, for whoever reads the log or a page."""
        return self.command("pipeline continue")

    def command(self, verb: str, *rest: str) -> str:
        """A command about this job, for whoever reads it anywhere on the machine."""
        return job_command(self.inputs, self.config, self.directory.path, verb, *rest)

    def run_again(self, position: int) -> str:
        """The command that runs a step of this job again, anywhere on the machine."""
        return self.command("job run", "--step", str(position), "--force")

    @property
    def decisions(self) -> list[tuple[int, Approval]]:
        """Every decision with its position; of two reviewers the first one before the second."""
        return decisions_of(self.reviews, self.approvals)

    def record(self) -> JobRecord:
        """The record as this process knows it, with all that it knows of the steps."""
        steps = tuple(self.steps[position] for position in sorted(self.steps))
        return self.writer.known().model_copy(update={"steps": steps})

    def written(self, position: int, *, tables: bool) -> Source:
        """The data that a finished step wrote, as the next one reads it."""
        step = self.steps[position]
        kept = kept_at(self.directory.path, position)
        return Source(
            path=self.directory.path / str(step.output),
            lines=step.lines_out,
            files=step.files,
            tables=tables,
            recorded=Recorded(step.name, position, kept, step.inventory) if step.inventory else None,
        )

    @contextmanager
    def running(self, context: StepContext) -> Iterator[None]:
        """Record that the step runs, and watch it."""
        position = context.position
        before = self.steps[position]
        self.journal.at(context.name, position)
        if before.state != "completed":
            self.steps[position] = StepReport(
                position=position,
                name=context.name,
                state="running",
                started=before.started or now(),
                directory=before.directory,
            )
            self.writer.step(self.steps[position])
            logger.info("step %d %s begins", position, context.name)
            self.journal.tell(StepEvent(state="running"))
        self.presenter.step_started(position, context.name)
        watcher = Watcher(self.writer, self.page, self.stop, self.presenter.progress)
        with watcher.watching(context.name, position, context.meter):
            yield
        self.said = context.meter.snapshot().warnings

    def finished(self, position: int, report: StepReport, *, expected: int | None) -> None:
        """Record a step's report; says it once, also when the step answered from its stored result.

        ``expected`` is how many lines the step before says it wrote.
        """
        name = self.step_names[position - 1]
        known = self.steps[position]
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
        step = self.steps[position] = report.model_copy(update=of_this_instance)
        if not before:
            # Before the record: once that says complete, no later run tells it.
            mode = str(self.config.services.send.send_as) if declared(name).delivers else None
            self.journal.completed(step, mode=mode)
            self.writer.step(step, progress=None)
            logger.info("step %d %s is complete: %s", position, name, step.summary())
            for warning in step.warnings:
                if warning not in self.said:
                    logger.warning("step %d %s: %s", position, name, warning)
        self.presenter.step_finished(step, again=before)

    def unfinished(
        self, position: int, state: StepEnd, *, error: Problem | None = None, **labels: Label | Waiting | None
    ) -> None:
        """Record that a step did not finish, together with other labels."""
        self._not_complete(position, state, error)
        also: dict[str, Any] = labels | ({"error": error} if error else {})
        self.writer.step(self.steps[position], progress=None, **also)

    def _not_complete(self, position: int, state: StepEnd, error: Problem | None) -> None:
        if state == "stopped" and self.steps[position].state == "completed":
            return  # the stop met it while it answered from its stored result
        step = self.steps[position] = self.steps[position].model_copy(update={"state": state})
        self.journal.at(step.name, position)
        self.journal.tell(StepEvent(state=state, error=error.reference if error else None))
        logger.info("step %d %s: %s", position, step.name, state)

    def problem(self, error: SluiceError, step: str | None = None) -> Problem:
        """The record of an error, without names of files (R7): the log, which has them, is named instead."""
        known = Problem.of(error, step=step)
        said = without_names_of(self.directory.path, self.step_names, known)
        hint = "; ".join(filter(None, (said.hint, NAMED_BY_THE_LOG)))
        return said if said == known else said.model_copy(update={"hint": hint})

    def failed(self, position: int | None, error: SluiceError) -> Problem:
        """Record the error that ends this run of the job; what the record says of it."""
        name = self.step_names[position - 1] if position else None
        logger.error("%s", error.render())
        self.presenter.failed(error)
        record = self.problem(error, name)
        if position:
            self._not_complete(position, "failed", record)
        # Told first: it may be the Prefect API that has failed. Once: it may have failed at this, too.
        if not self.journal.over:
            self.ended("failed", error=record)
        if position:
            self.writer.step(self.steps[position], progress=None, error=record)
        else:
            self.writer.set(error=record, progress=None)
        return record

    def passed_gate(self, position: int, error: GateError | None) -> None:
        """Tell what the gate behind a validation step did; closed, it ends the job although the step is complete."""
        details = self.steps[position].details
        findings, resources = technical(int(details["findings"])), technical(int(details["resources_with_findings"]))
        self.journal.tell(Gate(state="closed" if error else "open", findings=findings, resources=resources))
        if error is None:
            return
        self.held_back(position, error)

    def held_back(self, position: int, error: GateError) -> None:
        """Record that a gate ends the job; at a step that is complete, or that has not begun."""
        logger.error("%s", error.render())
        record = self.problem(error, self.step_names[position - 1])
        self.ended("failed", error=record)
        self.writer.set(error=record, progress=None, until=None)

    def look_away(self) -> None:
        """Forget what was to be seen at the wait before: it says nothing about the next one."""
        self.sight, self.there, self.again, self.refused = None, Inventory(()), (), ()

    def look(self, position: int, source: Source, sources: Sources) -> None:
        """Take in what there is to be seen at a wait.

        Raises:
            StorageError: something cannot be read.
            Stopped: somebody asked.
        """
        leaving, delivery = sources.leaving(position), sources.delivery(position)
        sight = Sight(
            self.directory.path, position, source.path, wait_directory(source.path),
            leaving.path if leaving is not None else None, sources.corrections(position),
            delivery.name if delivery is not None else NEXT,
        )  # fmt: skip
        approval = self.approvals.get(position)
        before = sight.kept(approval.files if approval and approval.files else self.seen.get(position, ""))
        if before is None and source.recorded is not None:
            before = source.recorded.load()
        self.there = sight.take(before.hash_of if before is not None else None, self.stop)
        self.sight = sight

    def close_again(self, position: int) -> bool:
        """Whether an approval does not cover what is there now. It counts no more then, and the wait asks again.

        Raises:
            DataError: corrected files are there that could not be used, by their names alone; files that the approval
                covers were edited in place.
        """
        if self.sight is None:
            return False
        self.sight.check()
        approval = self.approvals[position]
        why = no_longer(approval, self.sight, self.there)
        shown = self.shown.get(position)
        why = why or rules.other_report(approval, self.reviews.get(position), shown, self.config)
        why = why or tuple(filter(None, (rules.gone(self.directory.path, position, shown, self.config),)))
        if not why:
            self.sight.as_left(self.there, self.steps.values())
            return False
        self._void(position, why)
        return True

    def check_first(self, position: int) -> None:
        """Forget the first of two decisions where it does not cover what is there now; both are asked for again."""
        first = self.reviews.get(position)
        if self.sight is None or first is None or position in self.approvals:
            return
        why = no_longer(first, self.sight, self.there)
        if self.config.report.enabled and not why:
            shown = self.shown.get(position)
            outdated = rules.outdated(shown, self.there.digest, self.config)
            other = rules.ANOTHER_REPORT if shown is None or shown.sha256 != first.report else None
            gone = rules.gone(self.directory.path, position, shown, self.config)
            why = tuple(filter(None, (outdated or other or gone,)))
        if why:
            self._void(position, why)

    def reopen(self, position: int, why: tuple[str, ...]) -> None:
        """Void the approval of a wait that is complete, and let it ask again. Corrected files stay where they are."""
        step = self.steps[position]
        # The result first: with it the wait would let pass whoever comes, and without it, it is not complete.
        (self.directory.path.parent / self.directory.result_key(position, step.name)).unlink(missing_ok=True)
        self.steps[position] = StepReport(position=position, name=step.name, directory=step.directory)
        self._void(position, why, **{f"step__{position}": self.steps[position]})

    def _void(self, position: int, why: tuple[str, ...], **labels: StepReport) -> None:
        logger.warning("step %d wait: the approval counts no more, the job waits again: %s", position, "; ".join(why))
        # The answer of the form with it: it was for what that form was about.
        given = dict.fromkeys((f"approval__{position}", f"form__{position}"))
        if self.reviews.pop(position, None) is not None:
            given[f"review__{position}"] = None
        self.writer.set(**given, **labels)
        self.approvals.pop(position, None)
        self.forms.pop(position, None)
        self.again = without_file_names(why)

    def as_seen(self, waiting: Waiting) -> Waiting:
        """The wait with what there is to be seen, and why it waits again; for the form, the page and the record."""
        told = {"first": self.reviews.get(waiting.position), "report": self.shown.get(waiting.position)}
        waiting = waiting.model_copy(update={"again": self.again, "refused": self.refused} | told)
        if self.sight is None:
            return waiting
        files = self.shown[waiting.position].files if waiting.position in self.shown else ()
        return self.sight.shown(waiting, self.there, files, Words(self.config.report.language, k=0))

    def waits(self, waiting: Waiting, form: str) -> None:
        """Record where the job waits, before it is parked: from here on it can be decided, whatever becomes of the run.

        The directory for corrected files appears after that, so that whoever sees it finds a job that waits.

        Raises:
            StorageError: the directory cannot be made.
        """
        position, directory = waiting.position, Path(waiting.directory)
        # The key of the form is kept for each position: the answer is looked for there when the run goes on.
        self.steps[position] = self.steps[position].model_copy(update={"directory": directory.name})
        key: dict[str, Any] = {f"form__{position}": form}
        key[f"seen__{position}"] = self.sight.keep(self.there) if self.sight else None
        if (shown := self.shown.get(position)) is not None:
            key[f"shown__{position}"] = shown
        self.unfinished(position, "waiting", waiting=waiting, **key)
        make_directory(directory)
        self.journal.tell(Wait(state="asked"))
        self.ended("waiting", waiting=waiting)

    def decided(self, position: int, approval: Approval) -> None:
        """Tell a person's decision, in the run that acts on it."""
        if self.steps[position].state != "completed":
            self.journal.at(self.step_names[position - 1], position)
            self.journal.tell(Wait(state="decided", approved=approval.approved))

    def ended(
        self,
        state: JobEnd,
        *,
        error: Problem | None = None,
        waiting: Waiting | None = None,
        reason: str | None = None,
    ) -> None:
        """Tell how this run ends, and leave the summary. What cannot be written fails no run."""
        ended = self.journal.ends(state, error=error.reference if error else None, reason=reason)
        steps = [self.steps[position] for position in sorted(self.steps)]
        page = newest_page(self.shown, self.at_the_end)
        document = summary.summary_of(
            self.id, self.journal.run, state, steps, self.inputs, ended=ended, waiting=waiting, error=error,
            decisions=self.decisions,
            report=self.directory.path / page if page else None,
            k=self.loaded.config.report.k,
            types=newest_types(self.shown, self.at_the_end),
        )  # fmt: skip
        summary.write(self.directory.path, document)
        level, words = self._end(state, error, waiting, reason)
        logger.log(level, "%s", words)

    def _end(
        self, state: JobEnd, error: Problem | None, waiting: Waiting | None, reason: str | None
    ) -> tuple[int, str]:
        """How a run ends, in one line: the last one of its log."""
        go_on = f"continue with: {self.continued_with}"
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

    def leave(self, reason: str) -> None:
        """The last words of a process that ends without waiting for its threads: after a cancel, or by a signal."""
        self.presenter.close()
        self.ended("cancelled" if reason == CANCEL else "stopped", reason=reason)
        if reason != CANCEL:
            self.presenter.left(f"job {self.id} is stopped\ncontinue with: {self.continued_with}")

    def lost(self, error: SluiceError) -> None:
        """The last words of a process whose record has gone away: told in the files of the job, which are safe."""
        self.presenter.close()
        logger.error("%s", error.render())
        self.ended("failed", error=self.problem(error))


def follow(lock: JobLock, api: PrefectApi, job_id: str) -> None:
    """Take the lock of a worker's run; wait for a process that ends, as after *Suspend* and *Resume* in one moment.

    Raises:
        JobBusyError: it goes on, or the run has come to another end meanwhile.
    """
    try:
        lock.acquire()
    except JobBusyError:
        logger.info(
            "the process that has the job may be ending: waiting for it, %s at most", human_seconds(ENDS_WITHIN)
        )
        again = tenacity.retry_if_exception_type(JobBusyError)
        until = tenacity.stop_after_delay(ENDS_WITHIN)
        tenacity.Retrying(retry=again, stop=until, wait=tenacity.wait_fixed(1), reraise=True)(lock.acquire)
        with ExitStack() as unless_free:
            unless_free.callback(lock.release)
            if (api.read_run(job_id) or {}).get("state_type") != "RUNNING":
                raise
            unless_free.pop_all()


def finish_reset(record: JobRecord, directory: JobDirectory, writer: RecordWriter) -> bool:
    """Carry out a reset that is in the record: asked for before anything was removed, done however often it takes."""
    if record.reset is None:
        return False
    directory.reset(record.steps, record.reset)
    cleared = [f"step__{step.position}" for step in record.steps if step.position >= record.reset]
    writer.set(**dict.fromkeys(cleared), reset=None)
    return True
