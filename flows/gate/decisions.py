"""A decision at a ``wait``: read from the form of the Prefect UI, stored in the record, and applied to the job."""

from __future__ import annotations

import logging
from contextlib import suppress

from config import PipelineConfig
from flows.engine.api import PrefectApi
from flows.engine.flow_runs import REPORT, Page, append_log, form_answer
from flows.gate import rules
from flows.job.directory import JobDirectory
from flows.job.inputs import JobInputs, job_command
from flows.job.record import JobRecord, cancelled, now
from flows.job.running.lock import JobBusyError, JobLock
from flows.job.running.state import JobState
from flows.job.session import Session
from flows.job.writer import RecordWriter
from flows.output import one_line
from tasks.shared.errors import InputError, SluiceError, StorageError, TerminalError
from tasks.shared.log import logger
from tasks.shared.report import Approval, Problem, Shown, Waiting, visible_text


def answered_at(
    api: PrefectApi, record: JobRecord, position: int, config: PipelineConfig
) -> tuple[Approval | None, str | None]:
    """Return the answer in the form of the wait at ``position``, and the reason if it is refused."""
    answer = form_answer(api, record.id, record.forms.get(position))
    if answer is None:
        return None, None
    given = Approval(
        approved=answer.decision != "reject",
        by=visible_text(answer.by),
        comment=answer.comment,
        despite=visible_text(answer.despite),
        when=now(),
        where="ui",
        files=record.seen.get(position, ""),
    )
    shown = record.shown.get(position)
    if answer.decision == "question":
        if not visible_text(answer.comment):
            return given, "not released: a question needs a comment"
        return given, question(given.by, answer.comment)
    try:
        accepted = rules.answers(answer.accepted.splitlines(), shown)
        refused = rules.answers(answer.refused.splitlines(), shown)
    except InputError as error:
        if given.approved:
            return given, f"not released: {error.message}"
        accepted = refused = {}  # a rejection is always accepted, and its words are kept
        words = filter(str.strip, (answer.comment, answer.accepted, answer.refused))
        given = given.model_copy(update={"comment": "\n".join(words)})
    asked = record.questions.get(position, ())
    given = given.model_copy(update={"accepted": accepted, "refused": refused, "questions": asked})
    given = rules.stamped(given, shown)
    why = rules.objection(given, record.reviews.get(position), config)
    return given, None if why is None else f"not released: {why}"


QUESTION = "question of "
"""Beginning of the line that records a reviewer's question, after which the job keeps waiting."""


def question(by: str, text: str) -> str:
    """Return the line of a reviewer's question to the project."""
    return f"{QUESTION}{one_line(by)}: {one_line(text.strip())}"


def ask_project(session: Session, record: JobRecord, inputs: JobInputs, by: str, text: str) -> None:
    """Add a reviewer's question to the record and the page of a job, which continues to wait."""
    from flows.reports import pages  # a status needs no page

    waiting = record.undecided
    if waiting is None:
        return
    asked = "\n".join((*waiting.questions, question(by, text)))
    RecordWriter(session.api, record.id).set(**{f"questions__{waiting.position}": asked})
    with pages.best_effort("the page of the job"):
        config, directory = inputs.load().config, JobDirectory.of(session.jobs_dir, record.id)
        now_there = session.job(record.id)
        now_there = now_there.model_copy(update={"steps": tuple(directory.whole(step) for step in now_there.steps)})
        pages.job_page(
            Page(session.api, record.id), now_there, state="waiting",
            language=config.report.language,
            continued_with=job_command(inputs, config, directory.path, "pipeline continue"),
        )  # fmt: skip


def record_decision(
    writer: RecordWriter, record: JobRecord, position: int, decision: Approval, config: PipelineConfig
) -> bool:
    """Record a decision. Return whether it is final: the first of two decisions is not."""
    if rules.is_first(decision, record.reviews.get(position), config):
        writer.review(position, decision)
        return False
    writer.approve(position, decision)
    return True


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
    A question is recorded, and the job keeps waiting.
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
        decision, refusal = answered_at(session.api, record, waiting.position, session.loaded.config)
        if decision is not None and refusal is None:
            record_decision(writer, record, waiting.position, decision, session.loaded.config)
        elif refusal is not None and refusal.startswith(QUESTION):
            writer.record_questions(waiting.position, (*waiting.questions, refusal))
            decision = refusal = None
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
    decision, refusal = answered_at(session.api, record, position, session.loaded.config)
    if decision is None:
        return record
    if refusal is not None:
        return with_refusal(record, refusal)
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


def save_decision(session: Session, record: JobRecord, decision: Approval) -> None:
    """Save a decision in the record, where the next run looks for it.

    If somebody else has decided since ``record`` was read, that decision stands. If two people must release, the first
    release is stored as a review, and the job waits for the second person.

    Raises:
        InputError: the job no longer waits, the release report has stops and no reason is given, the same person
            decides twice, or the report was made again.
        TerminalError: the job was cancelled or rejected.
    """
    if record.undecided is None:
        raise TerminalError("no-wait", "the record does not say where the job waits", context=record.id)
    position = record.undecided.position
    now_there = settle(session, record.id)
    if now_there.undecided is None or now_there.undecided.position != position:
        raise decided_meanwhile(now_there, position)
    config = session.loaded.config
    refuse(decision, now_there.reviews.get(position), now_there.shown.get(position), config)
    record_decision(RecordWriter(session.api, record.id), now_there, position, decision, config)


def refuse(decision: Approval, first: Approval | None, shown: Shown | None, config: PipelineConfig) -> None:
    """Raise ``InputError`` if a decision cannot be accepted. The job then keeps waiting."""
    if decision.approved and shown is not None and decision.report != shown.sha256:
        raise InputError(
            "report-changed", "nothing is decided: the release report was made again in the meantime",
            hint="review it, and decide again",
        )  # fmt: skip
    why = rules.objection(decision, first, config)
    if why is None:
        return
    if decision.refused:
        raise InputError(
            "finding-refused", f"nothing is decided: {why}", hint="reject it, or release it without --refuse"
        )
    if decision.unexplained:
        lines = shown.stop_lines if shown is not None else ()
        raise InputError(
            "report-stops", f"nothing is decided: {why}", context="\n  ".join(map(one_line, lines)),
            hint="reject it, or release it with a reason: --approve --despite TEXT",
        )  # fmt: skip
    raise InputError("second-reviewer", f"nothing is decided: {why}", hint="let another person decide, named with --by")


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
            hint="continue it without a decision, answers and comment",
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
        record = record.model_copy(update={"steps": tuple(directory.whole(step) for step in record.steps)})
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
