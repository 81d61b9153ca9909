"""A decision at a ``wait``: read from the form of the Prefect UI, stored in the record, and applied to the job."""

from __future__ import annotations

import logging
from contextlib import suppress

from flows.engine.flow_runs import REPORT, Page, append_log, form_answer
from flows.gate import rules
from flows.job.directory import JobDirectory
from flows.job.lock import JobBusyError, JobLock
from flows.job.record import JobRecord, cancelled, now
from flows.job.session import Session
from flows.job.state import JobState
from flows.job.writer import RecordWriter
from flows.output import one_line
from flows.prefect.api import PrefectApi
from tasks.shared.errors import GateError, InputError, SluiceError, StorageError, TerminalError
from tasks.shared.log import logger
from tasks.shared.report import Approval, Problem, Waiting, visible_text


def answered_at(api: PrefectApi, record: JobRecord, position: int) -> tuple[Approval | None, str | None]:
    """Return the answer in the form of the wait at ``position``, and the reason if it is refused."""
    answer = form_answer(api, record.id, record.forms.get(position))
    if answer is None:
        return None, None
    given = Approval(
        approved=answer.decision == "release",
        by=visible_text(answer.by),
        comment=answer.comment,
        when=now(),
        where="ui",
        files=record.seen.get(position, ""),
    )
    why = rules.objection(given, record.shown.get(position))
    return given, None if why is None else f"not released: {why}"


def with_refusal(record: JobRecord, why: str) -> JobRecord:
    """Return the record of a job that still waits because the answer in its form was refused."""
    waiting = record.waiting
    return record.model_copy(update={"waiting": waiting.model_copy(update={"refused": (why,)})}) if waiting else record


def to_be_parked(record: JobRecord, waiting: Waiting) -> bool:
    """Return whether a waiting job needs a form: the answer in its last form was refused, or it has none."""
    return not record.parked and (bool(waiting.refused) or waiting.position not in record.forms)


def settle(session: Session, job_id: str) -> JobRecord:
    """Record an answer given in the UI as the decision of the job, and return the job's record.

    A job that was rejected ends as cancelled, and so does a job that was cancelled in the UI while no process ran it.
    """
    record = session.job(job_id)
    waiting = record.waiting
    if record.state is JobState.CANCELLED and session.state_type(job_id) == "CANCELLING":
        session.api.set_state(job_id, "CANCELLED", message="cancelled in the Prefect UI")
        end_parked(session, job_id)
    if record.state is not JobState.WAITING or waiting is None:
        return record
    decision, refusal = record.approvals.get(waiting.position), None
    if decision is None and session.state_type(job_id) != "PAUSED":
        decision, refusal = answered_at(session.api, record, waiting.position)
        if decision is not None and refusal is None:
            RecordWriter(session.api, job_id).approve(waiting.position, decision)
    if decision is not None and not decision.approved:
        end_rejected(session, job_id, decision, waiting.step)
    now_there = session.job(job_id)
    return now_there if refusal is None else with_refusal(now_there, refusal)


def as_decided(session: Session, record: JobRecord) -> JobRecord:
    """Return the record of a command's job, updated with a decision made in the UI.

    No worker runs such a job. After a release it is interrupted until a command continues it. After a rejection, this
    function ends it as cancelled.
    """
    waiting = record.undecided
    if waiting is None or record.parked:
        return record
    position = waiting.position
    decision, refusal = answered_at(session.api, record, position)
    if decision is None:
        return record
    if refusal is not None:
        return with_refusal(record, refusal)
    if decision.approved:
        decision = decision.model_copy(update={"when": record.updated or decision.when})
        approvals = record.approvals | {position: decision}
        return record.model_copy(update={"state": JobState.INTERRUPTED, "approvals": approvals})
    with suppress(JobBusyError, StorageError), JobLock(JobDirectory.of(session.jobs_dir, record.id).path):
        return settle(session, record.id)
    error = rejected(decision, waiting.step)
    return record.model_copy(update={"state": JobState.CANCELLED, "error": error})


def save_decision(session: Session, record: JobRecord, decision: Approval) -> None:
    """Save a decision in the record, where the next run looks for it.

    If somebody else has decided since ``record`` was read, that decision stands.

    Raises:
        InputError: the job no longer waits.
        GateError: the release report has stops or is missing, and no comment is given.
        TerminalError: the job was cancelled or rejected.
    """
    if record.undecided is None:
        raise TerminalError("no-wait", "the record does not say where the job waits", context=record.id)
    position = record.undecided.position
    now_there = settle(session, record.id)
    if now_there.undecided is None or now_there.undecided.position != position:
        raise decided_meanwhile(now_there, position)
    shown = now_there.shown.get(position)
    why = rules.objection(decision, shown)
    if why is not None:
        lines = shown.stop_lines if shown is not None else ()
        raise GateError(
            "report-stops", f"nothing is decided: {why}", context="\n  ".join(map(one_line, lines)),
            hint="reject it, or approve it with a comment: --approve --comment TEXT",
        )  # fmt: skip
    RecordWriter(session.api, record.id).approve(position, decision)


def decided_meanwhile(record: JobRecord, position: int) -> SluiceError:
    """Return the error for a decision on a job that was decided or cancelled in the meantime."""
    other = record.approvals.get(position)
    if record.state is JobState.CANCELLED:
        why = other.describe_decision(one_line) if other else "it was cancelled in the Prefect UI"
        return TerminalError(
            "job-cancelled", "the job was cancelled in the meantime; this decision was not recorded",
            context=f"{record.id}: {why}", hint="start a new job",
        )  # fmt: skip
    why = other.describe_decision(one_line) if other else f"it is {record.state.value}"
    return InputError(
        "not-waiting", "the job was decided in the meantime; this decision was not recorded",
        context=f"{record.id}: {why}", hint="continue it without --approve or --reject",
    )  # fmt: skip


def refuse_ended(record: JobRecord, decision: str | None) -> None:
    """Raise ``TerminalError`` for a cancelled job, ``InputError`` for a ``decision`` (a verb) without a wait."""
    if record.state is JobState.CANCELLED:
        raise TerminalError(
            "job-cancelled", "the job was cancelled and cannot be continued", context=record.id, hint="start a new job"
        )
    if decision and record.undecided is None:
        decided = record.waiting is not None and record.waiting.position in record.approvals
        state = "decided already" if decided else record.state.value
        raise InputError(
            "not-waiting", f"the job is {state}, there is nothing to {decision}", context=record.id,
            hint="continue it without a decision and comment",
        )  # fmt: skip


def reject(session: Session, record: JobRecord, decision: Approval) -> None:
    """Record the rejection, and end the job as cancelled."""
    save_decision(session, record, decision)
    end_rejected(session, record.id, decision, record.waiting.step if record.waiting else None)


def end_rejected(session: Session, job_id: str, decision: Approval, step: str | None) -> None:
    """End a job as cancelled after a rejection at ``step``."""
    error, writer, record = rejected(decision, step), RecordWriter(session.api, job_id), session.job(job_id)
    if record.waiting is not None:
        waited = record.step(record.waiting.position).model_copy(update={"state": "stopped"})
        writer.step(waited, progress=None, error=error)
    else:
        writer.set(error=error)
    session.api.set_state(job_id, "CANCELLED", message=error.message)
    end_parked(session, job_id, error)


def end_parked(session: Session, job_id: str, rejection: Problem | None = None) -> None:
    """Write the end of a cancelled job to its logs and pages, as part of the run that parked the job.

    No process ran the job when a reviewer's ``rejection`` or the Prefect UI cancelled it. The caller holds the job's
    lock. A file that cannot be written only causes a warning, because the record is already correct.
    """
    from flows.reports import pages, short_form  # a status needs no page
    from flows.reports.job_log import job_log

    settings = session.loaded.config.report
    with pages.best_effort(f"the end of job {job_id}"):
        record, directory = session.job(job_id), JobDirectory.of(session.jobs_dir, job_id)
        with pages.best_effort(f"the end of job {job_id}"), job_log(directory.log):
            logger.warning("%s", cancelled(rejection))
        append_log(session.api, record.id, logging.WARNING, cancelled(rejection))
        if record.waiting is not None:
            page = Page(session.api, job_id, REPORT)
            short_form.add_decisions(page, directory.path, record, record.waiting.position, settings)
        with pages.best_effort("the page of the job"):
            pages.job_page(Page(session.api, job_id), record, state="cancelled")


def rejected(approval: Approval, step: str | None) -> Problem:
    """Return the problem of a job that is cancelled after a rejection at ``step``."""
    return Problem(
        reference="rejected",
        message=approval.model_copy(update={"comment": ""}).describe_decision(one_line),
        context=one_line(approval.comment) or None,
        hint="fix the problem and start a new job",
        step=step,
    )
