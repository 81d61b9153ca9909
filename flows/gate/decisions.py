"""A person's decision at a ``wait``: read from the form of the Prefect UI, kept in the record, acted on."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from config import PipelineConfig
from flows.engine.answer import form_answer
from flows.engine.api import PrefectApi
from flows.engine.artifacts import REPORT, Page
from flows.gate import rules
from flows.job.directory import JobDirectory
from flows.job.inputs import JobInputs
from flows.job.record import JobRecord, RecordWriter, Run, cancelled, last_run, now
from flows.job.running.lock import JobBusyError, JobLock
from flows.job.running.state import JobState
from flows.job.session import Session
from flows.output import one_line
from tasks.shared.errors import InputError, SluiceError, StorageError, TerminalError
from tasks.shared.log import logger
from tasks.shared.report import Approval, Problem, Shown, Waiting


def form_decision(
    api: PrefectApi, job_id: str, form: str | None, files: str, shown: Shown | None = None
) -> Approval | None:
    """The decision that somebody sent with the form whose answers are kept under ``form``.

    ``files`` is the digest of what the form was about, ``shown`` the release report that it was about.
    """
    answer = form_answer(api, job_id, form)
    if answer is None:
        return None
    yes, by, despite = answer.decision == "release", answer.by.strip(), answer.despite.strip()
    given = Approval(approved=yes, by=by, comment=answer.comment, despite=despite, when=now(), where="ui", files=files)
    return rules.stamped(given, shown)


def answered_at(session: Session, record: JobRecord, position: int) -> tuple[Approval | None, str | None]:
    """The answer in the form of the wait at ``position``, if it is one that is taken; else why it is not."""
    seen, shown = record.seen.get(position, ""), record.shown.get(position)
    answer = form_decision(session.api, record.id, record.forms.get(position), seen, shown)
    if answer is None:
        return None, None
    why = rules.objection(answer, record.reviews.get(position), session.loaded.config)
    return (answer, None) if why is None else (None, f"not released: {why}")


def with_refusal(record: JobRecord, why: str) -> JobRecord:
    """A record of a job that goes on waiting, because the answer in its form was not taken."""
    waiting = record.waiting
    return record.model_copy(update={"waiting": waiting.model_copy(update={"refused": (why,)})}) if waiting else record


def to_be_parked(record: JobRecord, waiting: Waiting) -> bool:
    """Whether somebody answered in the form, and the job waits nevertheless: it needs a form for the next answer."""
    return not record.parked and (bool(waiting.refused) or waiting.position not in record.forms)


def settle(session: Session, job_id: str) -> JobRecord:
    """The job's record, in which an answer that somebody gave in the UI has become the decision.

    A rejection ends the job as cancelled here, and so does a cancel of a job that nobody runs.
    """
    record = session.job(job_id)
    waiting = record.waiting
    writer = RecordWriter(session.api, job_id)
    if record.state is JobState.CANCELLED and session.state_type(job_id) == "CANCELLING":
        session.api.set_state(job_id, "CANCELLED", message="cancelled in the Prefect UI")
        end_parked(session, job_id)
    if record.state is not JobState.WAITING or waiting is None:
        return record
    decision, refusal = record.approvals.get(waiting.position), None
    if decision is None and session.state_type(job_id) != "PAUSED":
        decision, refusal = answered_at(session, record, waiting.position)
        if decision is not None and rules.is_first(
            decision, record.reviews.get(waiting.position), session.loaded.config
        ):
            writer.review(waiting.position, decision)
            decision = None
        if decision is not None:
            writer.approve(waiting.position, decision)
    if decision is not None and not decision.approved:
        end_rejected(session, job_id, decision, waiting.step)
    now_there = session.job(job_id)
    return now_there if refusal is None else with_refusal(now_there, refusal)


def as_decided(session: Session, record: JobRecord) -> JobRecord:
    """A job that a command started and somebody decided in the UI, as it is: nobody acts on the answer by itself.

    Released, it is interrupted: a command continues it. Rejected, it ends as cancelled here.
    """
    waiting = record.undecided
    if waiting is None or record.parked:
        return record
    position = waiting.position
    decision, refusal = answered_at(session, record, position)
    if decision is None:
        return record if refusal is None else with_refusal(record, refusal)
    if rules.is_first(decision, record.reviews.get(position), session.loaded.config):
        return record.model_copy(update={"reviews": record.reviews | {position: decision}})
    if decision.approved:
        decision = decision.model_copy(update={"when": record.updated or decision.when})
        approvals = record.approvals | {position: decision}
        return record.model_copy(update={"state": JobState.INTERRUPTED, "approvals": approvals})
    with suppress(JobBusyError, StorageError), JobLock(JobDirectory.of(session.jobs_dir, record.id).path):
        return settle(session, record.id)
    error = rejected(decision, waiting.step)
    return record.model_copy(update={"state": JobState.CANCELLED, "error": error})


def keep(session: Session, record: JobRecord, decision: Approval) -> None:
    """Keep a decision in the record. That is all it takes: the run looks for it there when it goes on.

    Somebody may have decided since the record was read; the first decision counts. Where two people must release, the
    first one's is kept apart, and the job waits for the second.

    Raises:
        InputError: the job does not wait any more; the release report says stop, and no reason is given; the second
            person is the first; the report was made again.
        TerminalError: it was cancelled, or rejected.
    """
    if record.undecided is None:
        raise TerminalError("no-wait", "the record does not say where the job waits", context=record.id)
    position = record.undecided.position
    now_there = settle(session, record.id)
    if now_there.undecided is None or now_there.undecided.position != position:
        raise decided_meanwhile(now_there, position)
    first, config = now_there.reviews.get(position), session.loaded.config
    refuse(decision, first, now_there.shown.get(position), config)
    writer = RecordWriter(session.api, record.id)
    if rules.is_first(decision, first, config):
        writer.review(position, decision)
    else:
        writer.approve(position, decision)


def refuse(decision: Approval, first: Approval | None, shown: Shown | None, config: PipelineConfig) -> None:
    """Raises ``InputError`` where a decision cannot be taken, and the job goes on waiting."""
    if decision.approved and shown is not None and decision.report != shown.sha256:
        raise InputError(
            "report-changed", "nothing is decided: the release report was made again in the meantime",
            hint="look at it, and decide again",
        )  # fmt: skip
    why = rules.objection(decision, first, config)
    if why is None:
        return
    if decision.overridden and not decision.despite:
        lines = shown.stop_lines if shown is not None else ()
        raise InputError(
            "report-stops", f"nothing is decided: {why}", context="\n  ".join(map(one_line, lines)),
            hint="reject it, or release it nevertheless with a reason: --approve --despite TEXT",
        )  # fmt: skip
    raise InputError(
        "second-reviewer", f"nothing is decided: {why}", hint="let somebody else decide, and name her with --by"
    )


def decided_meanwhile(record: JobRecord, position: int) -> SluiceError:
    """What to say when a job stopped to wait while somebody was about to decide."""
    other = record.approvals.get(position)
    if record.state is JobState.CANCELLED:
        why = other.told(one_line) if other else "it was cancelled in the Prefect UI"
        return TerminalError(
            "job-cancelled", "the job was cancelled in the meantime, and this decision is not kept",
            context=f"{record.id}: {why}", hint="start a new job",
        )  # fmt: skip
    why = other.told(one_line) if other else f"it is {record.state.value}"
    return InputError(
        "not-waiting", "the job was decided in the meantime, and this decision is not kept",
        context=f"{record.id}: {why}", hint="continue it without --approve or --reject",
    )  # fmt: skip


def reject(session: Session, record: JobRecord, decision: Approval) -> None:
    """Keep the rejection and end the job as cancelled."""
    keep(session, record, decision)
    end_rejected(session, record.id, decision, record.waiting.step if record.waiting else None)


def end_rejected(session: Session, job_id: str, decision: Approval, step: str | None) -> None:
    """End a job as cancelled after a no at ``step``."""
    error, writer, record = rejected(decision, step), RecordWriter(session.api, job_id), session.job(job_id)
    if record.waiting is not None:
        waited = record.step(record.waiting.position).model_copy(update={"state": "stopped"})
        writer.step(waited, progress=None, error=error)
    else:
        writer.set(error=error)
    session.api.set_state(job_id, "CANCELLED", message=error.message)
    end_parked(session, job_id, error)


def end_parked(session: Session, job_id: str, rejection: Problem | None = None) -> None:
    """Tell that a job which nobody runs is cancelled: by a person's ``rejection``, else in the Prefect UI.

    In its logs, summary and pages like every other end, as a part of the run that parked it. The caller holds the job's
    lock. What cannot be written changes nothing: the record is what counts.
    """
    from flows.reports import pages, short_form, summary
    from flows.reports.journal import job_log
    from tasks.release_report.page import files

    with pages.best_effort(f"the end of job {job_id}"):
        record, directory = session.job(job_id), JobDirectory.of(session.jobs_dir, job_id)
        record = record.model_copy(update={"steps": tuple(directory.whole(step) for step in record.steps)})
        run = last_run(record)
        try:
            if run is not None:
                ended = _told_as_cancelled(directory.path, record, run, rejection)
                inputs = JobInputs.of(record.parameters)
                document = summary.summary_of(
                    record, run, "cancelled", inputs, ended=ended, error=rejection, k=session.loaded.config.report.k
                )
                summary.write(directory.path, document)
                with job_log(directory.log):
                    logger.warning("%s", cancelled(rejection))
                session.api.log(job_id, logging.WARNING, cancelled(rejection))
        except StorageError as error:
            logger.warning("the end of job %s is not told: %s", job_id, error.message)
        except ValidationError:
            logger.warning("the end of job %s is not told: another version wrote its parameters", job_id)
        if record.waiting is not None:
            with pages.best_effort("the decision in the release report"):
                position = record.waiting.position
                at_this = [one for at, one in record.decisions if at == position]
                copy_to = session.loaded.config.report.copy_to
                files.decided(directory.path, position, at_this, copy_to=copy_to)
                if record.waiting.report is not None:
                    short = Page(session.api, job_id, REPORT)
                    language = session.loaded.config.report.language
                    short_form.publish(short, directory.path, record.waiting.report, position, language)
        with pages.best_effort("the page of the job"):
            pages.job_page(Page(session.api, job_id), record, state="cancelled", k=session.loaded.config.report.k)


def _told_as_cancelled(directory: Path, record: JobRecord, run: Run, rejection: Problem | None) -> str:
    from flows.reports.events import Wait
    from flows.reports.journal import EventLog, Journal

    at = record.waiting.position if record.waiting else 0
    step = (record.step_names[at - 1], at) if 0 < at <= len(record.step_names) else None
    with EventLog(directory) as log:
        journal = Journal(record.id, log, run, step=step)
        if rejection is None:
            return journal.ends("cancelled", reason="cancel")
        journal.tell(Wait(state="decided", approved=False))
        return journal.ends("cancelled", error=rejection.reference)


def rejected(approval: Approval, step: str | None) -> Problem:
    """Why a job is cancelled after a no at ``step``."""
    return Problem(
        reference="rejected",
        message=approval.model_copy(update={"comment": ""}).told(one_line),
        context=one_line(approval.comment) or None,
        hint="mend what was found and start a new job",
        step=step,
    )
