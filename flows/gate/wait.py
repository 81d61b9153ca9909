"""Ask for a decision at the wait of a running job, and hold the job to the reviewed files.

``4-product.md`` §2: "An approval is for what was seen. If files changed since … the job waits once more and says so."
This applies until the last step that reads the released data is complete.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from flows.engine import runs
from flows.gate import release, rules
from flows.gate.decisions import answered_at, rejected
from flows.gate.reviewed_files import NEXT, ReviewedFiles, changes_since_approval
from flows.job.job import RunningJob
from flows.job.outcome import cancelled, ends_at, show
from flows.job.record import now
from flows.job.steps import Sources, announce_end, leave_step
from flows.reports import pages, short_form
from tasks.shared.corrections import make_directory, wait_directory
from tasks.shared.errors import DataError
from tasks.shared.files.inventory import Inventory
from tasks.shared.log import logger
from tasks.shared.report import Approval, Corrections, StepReport, Waiting
from tasks.shared.step import Parked, StepContext


class CurrentWait:
    """The wait at ``position`` of a job that this process runs.

    ``reviewed`` has the directories of the wait and ``there`` the current files. ``again`` and ``refused`` are the
    reasons why the job waits again.
    """

    def __init__(self, job: RunningJob, position: int, sources: Sources) -> None:
        self.job = job
        self.position = position
        self.sources = sources
        self.reviewed: ReviewedFiles | None = None
        self.there = Inventory(())
        self.again: tuple[str, ...] = ()
        self.refused: tuple[str, ...] = ()

    @property
    def approval(self) -> Approval | None:
        """Decision in the record."""
        return self.job.record().approvals.get(self.position)

    def check(self) -> None:
        """Read the files, then the decision. Without a decision, make the release report for the reviewer.

        Raises:
            Ended: the release was rejected, or an error or a stop ends the run here.
        """
        complete = self.job.steps[self.position].state == "completed"
        at = self.position
        if complete:
            to_read = [at for at in self.sources.readers(at) if self.job.steps[at].state != "completed"]
            if not to_read:
                return
            at = to_read[0]  # an error keeps this step from its data; the wait stays complete
        with ends_at(self.job, at):
            if complete and not self._asks_again():
                return
            if not complete:
                self.read_files()
            self.decide()
            if self.approval is None:
                release.before_waiting(self)

    def read_files(self) -> None:
        """List the files that the reviewer can see now.

        Raises:
            StorageError: something cannot be read.
            Stopped: the job is asked to stop.
        """
        source = self.sources.newest
        if source is None:
            return
        position, record = self.position, self.job.record()
        leaving, delivery = self.sources.data_sent_after(position), self.sources.delivery(position)
        self.reviewed = ReviewedFiles(
            self.job.directory.path, position, source.path, wait_directory(source.path),
            leaving.path if leaving is not None else None, self.sources.corrections(position),
            delivery.name if delivery is not None else NEXT,
        )  # fmt: skip
        approval = record.approvals.get(position)
        before = self.reviewed.seen_files(
            approval.files if approval and approval.files else record.seen.get(position, "")
        )
        if before is None and source.recorded is not None:
            before = source.recorded.load()
        self.there = self.reviewed.list_files(before.hash_of if before is not None else None, self.job.stop)

    def decide(self) -> None:
        """Look for a decision.

        An answer in the form of the UI becomes the recorded approval here. If a command approved while the form
        rejected, the rejection counts, because labels have no compare-and-set.

        Raises:
            Ended: the decision is a rejection.
            DataError: a name of a corrected file cannot be used, or approved files were edited in place.
        """
        known = self.approval
        if known is None or (known.approved and known.where == "cli"):
            self._read_form(known)
        decision = self.approval
        if decision is not None and decision.approved and self._void_decision():
            return  # the step parks the job
        job = self.job
        if decision is not None:
            short_form.add_decisions(job.short, job.directory.path, job.record(), self.position, job.config.report)
        if decision is None or decision.approved:
            return
        error = rejected(decision, job.step_names[self.position - 1])
        leave_step(job, self.position, "stopped", error=error)
        raise cancelled(job, error)

    def _read_form(self, known: Approval | None) -> None:
        """Record the answer in the form of this wait, given the decision that is already ``known``."""
        position, record = self.position, self.job.record()
        answer, refusal = answered_at(self.job.api, record, position)
        if answer is None:
            if known is None and position in record.forms:
                logger.warning("step %d wait: resumed without a decision and a name: the job waits again", position)
            return
        if known is not None and answer.approved:
            return
        if refusal is not None:
            self.refused = (refusal,)
            logger.warning("step %d wait: the answer was refused; the job waits again and shows the reason", position)
        else:
            self.job.writer.approve(position, answer)
            logger.info("step %d wait was decided in the Prefect UI or through its API", position)

    def _void_decision(self) -> bool:
        """Void an approval that does not cover the current files. Return whether it was voided.

        Raises:
            DataError: a name of a corrected file cannot be used, or approved files were edited in place.
        """
        job, record, approval = self.job, self.job.record(), self.approval
        if self.reviewed is None or approval is None:
            return False
        self.reviewed.check()
        why = changes_since_approval(approval, self.reviewed, self.there)
        outdated = rules.outdated(record.shown.get(self.position), self.there.digest, job.config)
        if not why and outdated is not None:
            why = (outdated,)
        if not why:
            self.reviewed.as_left(self.there, job.steps.values())
            return False
        self._void(why)
        return True

    def _asks_again(self) -> bool:
        """Return whether a complete wait has to ask again; its approval is void then.

        Unchanged files are not read, only their status.

        Raises:
            DataError: ``approved-files-changed``: approved files changed after a step began to read them.
            StorageError: something cannot be read.
            Stopped: the job is asked to stop.
        """
        job, position, approval = self.job, self.position, self.approval
        if self.sources.newest is None or approval is None:
            return False
        self.read_files()
        if self.reviewed is None:
            return False
        if not (why := changes_since_approval(approval, self.reviewed, self.there)):
            # Also when a send has begun: the approval is for the destination that the report names, and for no other.
            shown = job.record().shown.get(position)
            why = rules.other_settings(shown, job.config) if self.sources.delivery(position) else ()
            if why:
                self._reopen(why)
            return bool(why)
        begun = [job.steps[at] for at in self.sources.readers(position) if job.steps[at].started is not None]
        if begun:
            place = self.reviewed.directory.name
            raise DataError(
                "approved-files-changed",
                f"files changed after they were approved at step {position}, and step {begun[0].position}, "
                f"{begun[0].name}, has begun with what was approved",
                context="\n  ".join(why),
                hint=f"restore them, remove added files from {place}/, and continue the job; or "
                f"to decide again, {job.run_again(position)} (it renames {place}/ to {place}.old/ and removes what "
                f"later steps wrote), and copy corrected files back into {place}/ when the job waits",
            )
        self._reopen(why)
        return True

    def _reopen(self, why: tuple[str, ...]) -> None:
        """Void the approval of a complete wait, which then asks again. Corrected files stay in place."""
        job, step = self.job, self.job.steps[self.position]
        job.steps[self.position] = StepReport(position=self.position, name=step.name, directory=step.directory)
        self._void(why, **{f"step__{self.position}": job.steps[self.position]})

    def _void(self, why: tuple[str, ...], **labels: StepReport) -> None:
        position = self.position
        logger.warning("step %d wait: the approval is void, and the job waits again: %s", position, "; ".join(why))
        # The answer of the form, too: it was for the files of that form.
        self.job.writer.set(**dict.fromkeys(f"{kind}__{position}" for kind in ("approval", "form")), **labels)
        self.again = why

    def approved(self, context: StepContext) -> StepContext:
        """Return the context of the step with the approved files and the corrections that it accepts."""
        return replace(
            context,
            approved=self.there if self.approval is not None else None,
            corrections=self.reviewed.corrections if self.reviewed is not None else Corrections.NDJSON,
        )

    def park(self, parked: Parked, looked_at: Path) -> NoReturn:
        """Save the form, record where the job waits, park the run and leave the flow.

        In this order: a process that dies before the record leaves a job that is interrupted and comes back here; from
        the record on the job waits and can be decided with ``pipeline continue``, parked in Prefect or not.

        Raises:
            StorageError: the directory for corrected files cannot be made.
            prefect.exceptions.Pause: on success.
        """
        job, position = self.job, self.position
        waiting = self.waiting(parked.directory, looked_at)
        record = job.record()
        again = "resumed without a decision; " if position in record.forms else ""
        if self.refused:
            again = "resumed with an answer that was refused; "
        language, by_hand = job.config.report.language, None if job.deployed else job.continued_with
        description = pages.wait_description(waiting, job.step_names, by_hand, language=language)
        fields = pages.field_words(language)
        form, state = runs.saved_form(job.id, position, description, fields, deployed=job.deployed)
        state.message = f"{again}step {position} waits for a decision: Resume asks for it"
        self.record(waiting, form)
        show(job, "waiting")
        job.presenter.waits(waiting)
        runs.park(job.id, state)

    def waiting(self, directory: Path, looked_at: Path) -> Waiting:
        """Return the wait as the form, the page and the record show it."""
        position, record = self.position, self.job.record()
        shown = record.shown.get(position)
        found = Waiting(
            position=position,
            step=self.job.step_names[position - 1],
            directory=str(directory),
            looked_at=str(looked_at),
            since=now(),
            again=self.again,
            refused=self.refused,
            report=shown,
        )
        if self.reviewed is None:
            return found
        return self.reviewed.shown(found, self.there)

    def record(self, waiting: Waiting, form: str) -> None:
        """Record where the job waits, before it is parked: from here on it can be decided.

        The directory for corrected files is made after that, so that it exists only while the job waits.

        Raises:
            StorageError: the directory cannot be made.
        """
        job, position, directory = self.job, self.position, Path(waiting.directory)
        job.steps[position] = job.steps[position].model_copy(update={"directory": directory.name})
        # The key of the form is kept for each position: the continued run looks there for the answer.
        labels: dict[str, Any] = {f"form__{position}": form}
        labels[f"seen__{position}"] = self.reviewed.save_seen(self.there) if self.reviewed else None
        leave_step(job, position, "waiting", waiting=waiting, **labels)
        make_directory(directory)
        announce_end(job, "waiting", waiting=waiting)
