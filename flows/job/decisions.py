"""A person's decision at a ``wait``: shown, asked, taken from the form of the Prefect UI, kept in the record."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path

import click
from pydantic import ValidationError

from config import PipelineConfig
from flows.commands.status import where_to_look
from flows.engine.api import PrefectApi
from flows.engine.artifacts import Artifacts
from flows.job.directory import JobDirectory
from flows.job.inputs import JobInputs
from flows.job.record import JobRecord, JobState, RecordWriter, Run, last_run, now
from flows.job.seen import to_be_read
from flows.job.session import Session
from flows.job.sources import destinations
from flows.output import one_line, say
from tasks.shared.errors import InputError, SluiceError, StorageError, TerminalError
from tasks.shared.log import logger
from tasks.shared.report import Approval, Problem, Waiting


def answered(api: PrefectApi, job_id: str, form: str | None, files: str) -> Approval | None:
    """The decision that somebody sent with the form whose answers are kept under ``form``.

    ``files`` is the digest of what the form was about.
    """
    from flows.engine import runs

    answer = runs.form_answer(api, job_id, form)
    if answer is None:
        return None
    yes, by = answer.decision == "release", answer.by.strip()
    return Approval(approved=yes, by=by, comment=answer.comment, when=now(), where="ui", files=files)


def settle(session: Session, job_id: str) -> JobRecord:
    """The job's record, in which an answer that somebody gave in the UI has become the decision.

    A rejection ends the job as cancelled here, and so does a cancel of a job that nobody runs.
    """
    record = session.job(job_id)
    waiting = record.waiting
    writer = RecordWriter(session.api, job_id)
    if record.state is JobState.CANCELLED and session.state_type(job_id) == "CANCELLING":
        session.api.set_state(job_id, "CANCELLED", message="cancelled in the Prefect UI", force=True)
        end_parked(session, job_id)
    if record.state is not JobState.WAITING or waiting is None:
        return record
    decision = record.approvals.get(waiting.position)
    if decision is None and session.state_type(job_id) != "PAUSED":
        seen = record.seen.get(waiting.position, "")
        decision = answered(session.api, job_id, record.forms.get(waiting.position), seen)
        if decision is not None:
            writer.approve(waiting.position, decision)
    if decision is not None and not decision.approved:
        end_rejected(session, job_id, decision, waiting.step)
    return session.job(job_id)


def on_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def ask(waiting: Waiting, config: PipelineConfig, *, err: bool) -> bool:
    """Show what the next step will read and where it goes from there, and ask whether it may."""
    source, files = to_be_read(waiting)
    say(f"step {waiting.position} waits since {waiting.since}; {waiting.reader} will read {source}:", err=err)
    for file in files[:20]:
        say(f"  {one_line(file.name)}  {file.stat().st_size:,} bytes", err=err)
    if len(files) > 20:
        say(f"  … and {len(files) - 20} more", err=err)
    for step, where in destinations(config, waiting.position):
        say(f"then {step}: to {where}", err=err)
    return click.confirm("Release it?", default=False, err=err)


def still_waiting(job_id: str, waiting: Waiting, *, err: bool) -> None:
    """Say that nothing is decided, and for what the job waits; ``report`` says which command decides."""
    say(f"nothing is decided: job {job_id} waits at step {waiting.position} for a person's decision", err=err)
    say("\n".join(where_to_look(waiting)), err=err)


def decision_of(answer: bool, *, by: str | None, comment: str, files: str = "") -> Approval:
    """A decision made with this command now, by the person that is named, else by the one who is logged in.

    ``files`` is the digest of what it is made on.
    """
    if by is None:
        try:
            by = getpass.getuser()
        except (KeyError, OSError):
            by = str(os.getuid())
    return Approval(approved=answer, by=_text(by), comment=_text(comment), when=now(), where="cli", files=files)


def _text(words: str) -> str:
    """Words of a command line, without what is no text in its encoding and could not be kept as JSON."""
    return words.encode(errors="replace").decode()


def keep(session: Session, record: JobRecord, decision: Approval) -> None:
    """Keep a decision in the record. That is all it takes: the run looks for it there when it goes on.

    Somebody may have decided since the record was read; the first decision counts.

    Raises:
        InputError: the job does not wait any more.
        TerminalError: it was cancelled, or rejected.
    """
    if record.undecided is None:
        raise TerminalError("no-wait", "the record does not say where the job waits", context=record.id)
    position = record.undecided.position
    now_there = settle(session, record.id)
    if now_there.undecided is None or now_there.undecided.position != position:
        raise decided_meanwhile(now_there, position)
    RecordWriter(session.api, record.id).approve(position, decision)


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
    error = rejected(decision, step)
    RecordWriter(session.api, job_id).set(error=error)
    session.api.set_state(job_id, "CANCELLED", message=error.message, force=True)
    end_parked(session, job_id, error)


def end_parked(session: Session, job_id: str, rejection: Problem | None = None) -> None:
    """Tell that a job which nobody runs is cancelled: by a person's ``rejection``, else in the Prefect UI.

    In its log, summary and page like every other end, as a part of the run that parked it. The caller holds the job's
    lock. What cannot be written changes nothing: the record is what counts.
    """
    from flows.reports import pages, summary

    with pages.best_effort(f"the end of job {job_id}"):
        record, directory = session.job(job_id), JobDirectory.of(session.jobs_dir, job_id)
        steps = tuple(directory.whole(step) for step in record.steps)
        run = last_run(record)
        try:
            if run is not None:
                ended = _told_as_cancelled(directory.path, record, run, rejection)
                inputs = JobInputs.of(record.parameters)
                document = summary.summary_of(job_id, run, "cancelled", steps, inputs, ended=ended, error=rejection)
                summary.write(directory.path, document)
        except StorageError as error:
            logger.warning("the end of job %s is not told: %s", job_id, error.message)
        except ValidationError:
            logger.warning("the end of job %s is not told: another version wrote its parameters", job_id)
        with pages.best_effort("the page of the job"):
            shown = record.model_copy(update={"steps": steps})
            pages.job_page(Artifacts(session.api, job_id), shown, state="cancelled")


def _told_as_cancelled(directory: Path, record: JobRecord, run: Run, rejection: Problem | None) -> str:
    from flows.reports.event_file import EventLog
    from flows.reports.events import Wait
    from flows.reports.journal import Journal
    from flows.reports.trace import Trace

    at = record.waiting.position if record.waiting else 0
    step = (record.step_names[at - 1], at) if 0 < at <= len(record.step_names) else None
    with EventLog(directory) as log:
        journal = Journal(record.id, log, Trace(), run, step=step)
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
