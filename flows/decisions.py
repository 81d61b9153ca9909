"""A person's decision at a ``wait``, made with ``pipeline continue``: shown, asked, kept in the record."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from pathlib import Path

import click

from flows.record import Approval, JobRecord, RecordWriter, now
from flows.session import Session
from tasks.shared.errors import TerminalError


def ask(record: JobRecord) -> bool:
    """On a terminal: show what the next step will read and ask. Elsewhere ``continue`` is the approval."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or record.waiting is None:
        return True
    from tasks.shared.ndjson import data_files

    waiting = record.waiting
    directory = Path(waiting.directory)
    corrected = data_files(directory) if directory.is_dir() else []
    source = directory if corrected else Path(waiting.looked_at)
    files = corrected or data_files(source)
    click.echo(f"step {waiting.position} waits since {waiting.since}; the next step will read {source}:")
    for file in files[:20]:
        click.echo(f"  {file.name}  {file.stat().st_size:,} bytes")
    if len(files) > 20:
        click.echo(f"  … and {len(files) - 20} more")
    return click.confirm("Go on?", default=False)


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
    from flows.pipeline import rejected

    if record.waiting is None:
        raise TerminalError("no-wait", "the record does not say where the job waits", context=record.id)
    writer = RecordWriter(session.api, record.id)
    decision = decision_of(False, comment)
    writer.approve(record.waiting.position, decision)
    writer.set(error=rejected(decision))
    session.api.set_state(record.id, "CANCELLED", message=f"rejected by {decision.who}", force=True)
