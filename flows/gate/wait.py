"""The waits of a running job: judge the answer, park the run, and check that later steps read approved data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from flows.gate import release
from flows.gate.answers import answer_left
from flows.gate.decision import NOBODY_DECIDED, difference, judge
from flows.gate.reviewed import Covered, destination
from flows.job.ends import end
from flows.job.problem import Problem
from flows.job.record import at, continue_command
from flows.job.running import RunningJob
from flows.job.sources import Sources
from flows.job.state import JobState
from flows.job.waiting import Decision, Reviewed, Shown, Waiting
from flows.prefect import runs
from flows.reports.waiting import form_text
from tasks.shared.corrections import make_directory
from tasks.shared.files.inventory import Inventory, differences, load
from tasks.shared.log import logger
from tasks.shared.markdown import visible
from tasks.shared.report import StepReport
from tasks.shared.step import Source


class Waits:
    """The waits of a job that this process runs; ``sources`` are the data of its steps so far."""

    def __init__(self, job: RunningJob, sources: Sources) -> None:
        self._job = job
        self._sources = sources
        self._covered: dict[int, Covered] = {}

    def decide(self, position: int) -> Source:
        """Return the data of the wait at ``position`` if the job may go on after it.

        Raises:
            prefect.exceptions.Pause: the job waits, or the answer is a rejection.
        """
        covered = Covered(self._job.directory.path, position, self._sources.at_wait(position))
        self._covered[position] = covered
        if self._job.steps[position].state != "completed":
            self._judge(covered)
        return covered.source

    def _judge(self, covered: Covered) -> None:
        """Return after an approval, end the job after a rejection, and park it otherwise."""
        decision = self._job.record().decisions.get(covered.position)
        if decision is None:
            decision = self._decision(covered)
        elif decision.approved:
            self._hold(covered, decision)
        if not decision.approved:
            error = _rejected(decision, self._job.step_names[covered.position - 1])
            end(self._job, JobState.CANCELLED, error.message, error)

    def _decision(self, covered: Covered) -> Decision:
        """Judge the answer and record the decision, or park the job."""
        job, record, position = self._job, self._job.record(), covered.position
        shown, answer = record.shown.get(position), answer_left(job.api, record, position)
        files, current = self._as_now(covered)
        if answer is None or shown is None:
            self._park(covered, files, NOBODY_DECIDED if shown is not None else None)
        reason = judge(answer, shown, current, self._changes(covered, shown, files), covered.obstacle(files))
        if reason is not None:
            self._park(covered, files, reason)
        decision = Decision(**answer.model_dump(), **current.model_dump())
        job.writer.write({at("decision", position): decision, at("answer", position): None})
        logger.info("step %d wait was %s", position, decision.describe(visible))
        release.add_decision(job, position)
        return decision

    def check(self, position: int, source: Source | None) -> None:
        """Park the job again if the step at ``position`` would read data that changed after their approval."""
        if source is None or source.approved is None or self._job.steps[position].state == "completed":
            return
        covered = self._covered[source.approved.position]
        self._hold(covered, self._job.record().decisions[covered.position])

    def passed(self, position: int, report: StepReport) -> None:
        """Mark as approved what the steps after a wait read: the corrected files, or else the original ones."""
        covered, job = self._covered[position], self._job
        source = job.written(position, tables=covered.source.tables) if report.output else covered.source
        approved = covered.approved(job.record().decisions[position].files)
        self._sources.passed(covered.source, replace(source, approved=approved))

    def _as_now(self, covered: Covered) -> tuple[Inventory, Reviewed]:
        """Return the manifest of the present files, and the files and destination that an approval would now cover."""
        files = covered.manifest(self._job.stop)
        return files, Reviewed(files=files.digest, destination=destination(self._job.config))

    def _hold(self, covered: Covered, decision: Decision) -> None:
        """Park the job again if the files or the destination are not those that ``decision`` approved."""
        files, current = self._as_now(covered)
        reason = difference(decision, current, self._changes(covered, decision, files))
        if reason is not None:
            self._park(covered, files, reason)

    def _changes(self, covered: Covered, before: Reviewed, files: Inventory) -> list[str]:
        known = load(covered.kept, before.files)
        return differences(known, files) if known is not None else []

    def _park(self, covered: Covered, files: Inventory, reason: str | None) -> NoReturn:
        """Make the release report, record where the job waits, park the run, save its form, and leave the flow.

        The order matters: a job that is killed before this is recorded is interrupted, and its next run comes back
        here. Once it is recorded, the job waits, and a command can decide.

        Raises:
            prefect.exceptions.Pause: always, on success.
        """
        job, position = self._job, covered.position
        name = job.step_names[position - 1]
        if reason is not None:
            logger.warning("step %d wait: the job waits again: %s", position, reason)
        leaves = self._sources.delivery(position) is not None
        shown = release.before_waiting(job, covered, files, leaves=leaves)
        files.save(covered.kept)
        waiting = Waiting(
            position=position, step=name, looked_at=str(covered.source.path),
            directory=str(covered.directory), reads=str(covered.place()), tables=covered.source.tables,
            reason=covered.obstacle(files) or reason,
        )  # fmt: skip
        deployed = job.record().has_deployment
        state, form = runs.pause(position, deployed=deployed)
        state.message = f"step {position} waits for a decision: press Resume to decide"
        self._record(waiting, shown.model_copy(update={"form": form}))
        make_directory(covered.directory)
        go_on = continue_command(job.record())
        logger.info("the job waits at step %d for a person's decision; continue with: %s", position, go_on)
        job.show()
        job.presenter.waits(job.record(), waiting)
        runs.park(job.id, state, form_text(job.record(), waiting, None if deployed else go_on))

    def _record(self, waiting: Waiting, shown: Shown) -> None:
        """Record in one write where the job waits, and clear an earlier answer and decision.

        If an approval is cleared, the steps after this wait run again, because they will read other data.
        """
        position, directory = waiting.position, Path(waiting.directory).name
        step = StepReport(position=position, name=waiting.step, state="waiting", directory=directory)
        behind = range(position + 1, len(self._job.step_names) + 1)
        again = behind if position in self._job.record().decisions else ()
        self._job.writer.state = JobState.WAITING
        self._job.writer.write({
            at("step", position): step, **{at("step", later): None for later in again},
            at("shown", position): shown, at("answer", position): None, at("decision", position): None,
            "waiting": waiting, "progress": None,
        })  # fmt: skip


def _rejected(decision: Decision, step: str) -> Problem:
    """Return the problem of a job that is cancelled after a rejection at ``step``."""
    who = decision.model_copy(update={"comment": ""}).describe(visible)
    return Problem(
        reference="rejected", message=who, context=decision.comment or None,
        hint="fix the problem and start a new job", step=step,
    )  # fmt: skip
