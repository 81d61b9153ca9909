"""A person's decision at a ``wait``, made with ``pipeline continue``: shown, asked, kept in the record."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from pathlib import Path

import click

from flows import afterwards
from flows.directory import JobDirectory
from flows.output import say
from flows.record import Approval, ErrorRecord, JobRecord, JobState, RecordWriter, now
from flows.session import Session
from tasks.shared.errors import SluiceError, TerminalError
from tasks.shared.log import logger

IN_THE_UI = "Prefect UI or API"
"""Who decided, when the form was answered there: Prefect does not say which person."""


def settle(session: Session, job_id: str) -> JobRecord:
    """The job's record, in which an answer that somebody gave in the UI has become the decision.

    A rejection ends the job as cancelled here, and so does a cancel of a job that nobody runs.
    """
    from flows import engine

    record = session.job(job_id)
    waiting = record.waiting
    writer = RecordWriter(session.api, job_id)
    if record.state is JobState.CANCELLED and session.state_type(job_id) == "CANCELLING":
        session.api.set_state(job_id, "CANCELLED", message="cancelled in the Prefect UI", force=True)
        directory = JobDirectory.of(session.jobs_dir, job_id).path
        afterwards.cancelled(directory, job_id)
        _show_cancelled(session, job_id, directory)
    if record.state is not JobState.WAITING or waiting is None:
        return record
    decision = record.approvals.get(waiting.position)
    if decision is None and session.state_type(job_id) != "PAUSED":
        answer = engine.form_answer(session.api, job_id, record.forms.get(waiting.position))
        if answer is not None:
            decision = Approval(approved=answer.approved, comment=answer.comment, who=IN_THE_UI, when=now())
            writer.approve(waiting.position, decision)
    if decision is not None and not decision.approved:
        end_rejected(session, job_id, decision)
    return session.job(job_id)


def ask(record: JobRecord, *, err: bool) -> bool:
    """On a terminal: show what the next step will read and ask. Elsewhere ``continue`` is the approval."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or record.waiting is None:
        return True
    from tasks.shared.ndjson import data_files

    waiting = record.waiting
    directory = Path(waiting.directory)
    corrected = data_files(directory) if directory.is_dir() else []
    source = directory if corrected else Path(waiting.looked_at)
    files = corrected or data_files(source)
    say(f"step {waiting.position} waits since {waiting.since}; the next step will read {source}:", err=err)
    for file in files[:20]:
        say(f"  {file.name}  {file.stat().st_size:,} bytes", err=err)
    if len(files) > 20:
        say(f"  … and {len(files) - 20} more", err=err)
    return click.confirm("Go on?", default=False, err=err)


def decision_of(person: bool, comment: str) -> Approval:
    """A decision made on this machine now."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return Approval(approved=person, comment=comment, who=f"{user}@{socket.gethostname()}", when=now())


def approve(session: Session, record: JobRecord, comment: str) -> None:
    """Keep the approval, then resume the run as the UI's button does."""
    from flows import engine

    if record.waiting is None:
        raise TerminalError("no-wait", "the record does not say where the job waits", context=record.id)
    RecordWriter(session.api, record.id).approve(record.waiting.position, decision_of(True, comment))
    engine.resume(session.api, record.id, approved=True, comment=comment)


def reject(session: Session, record: JobRecord, comment: str) -> None:
    """Keep the rejection and end the job as cancelled."""
    if record.waiting is None:
        raise TerminalError("no-wait", "the record does not say where the job waits", context=record.id)
    decision = decision_of(False, comment)
    RecordWriter(session.api, record.id).approve(record.waiting.position, decision)
    end_rejected(session, record.id, decision)


def end_rejected(session: Session, job_id: str, decision: Approval) -> None:
    """End a job as cancelled after a no."""
    RecordWriter(session.api, job_id).set(error=rejected(decision))
    session.api.set_state(job_id, "CANCELLED", message=f"rejected by {decision.who}", force=True)
    directory = JobDirectory.of(session.jobs_dir, job_id).path
    afterwards.cancelled(directory, job_id, rejected(decision))
    _show_cancelled(session, job_id, directory)


def _show_cancelled(session: Session, job_id: str, directory: Path) -> None:
    """Let the job's page say so too. What cannot be written changes nothing: the record is what counts."""
    from flows import reporting, summary

    known = summary.read(directory)
    try:
        record = RecordWriter(session.api, job_id).read()
        reporting.job_page(session.api, job_id, record, known.reconciliation if known else (), state="cancelled")
    except SluiceError as error:
        logger.warning("the page of the job is not written: %s", error.message)


def rejected(approval: Approval) -> ErrorRecord:
    """Why a job is cancelled after a no."""
    return ErrorRecord(
        reference="rejected",
        message=f"rejected by {approval.who or 'a person'} at {approval.when}",
        context=approval.comment or None,
        hint="mend what was found and start a new job",
        step="wait",
    )
