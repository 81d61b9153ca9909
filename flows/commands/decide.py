"""Ask a person on the terminal to decide a wait. A command only leaves an answer; the flow judges it."""

from __future__ import annotations

import getpass
import os
from functools import partial

import click

from flows.commands.options import AnswerText
from flows.job.record import JobRecord, now
from flows.job.waiting import Answer, Waiting
from flows.output import print_line
from flows.reports import short_form
from flows.reports.page import destination_line, files_read
from flows.reports.status import wait_lines


def ask(record: JobRecord, waiting: Waiting, by: str | None, comment: str, *, err: bool) -> Answer | None:
    """Show the findings and what will leave, and ask for a decision; ``None`` if nothing is decided."""
    show(record, waiting, err=err)
    print_line("\n".join([f"read next, in {waiting.reads}:", *(f"  {file}" for file in files_read(waiting))]), err=err)
    if where := destination_line(record, waiting):
        print_line(f"destination: {where}", err=err)
    if not click.confirm("Release it?", default=False, err=err):
        return None
    prompt = partial(click.prompt, type=AnswerText(), err=err)
    by = by if by is not None else str(prompt("Your name", default=login()))
    if not comment.strip():
        comment = str(prompt("Comment (recorded with the decision)", default="", show_default=False))
    return answer(True, by, comment)


def show(record: JobRecord, waiting: Waiting, *, err: bool) -> None:
    """Print what the job waits for, and the release report in short."""
    lines = short_form.lines_at(waiting.job_dir, waiting.position)
    print_line("\n".join([*wait_lines(record, waiting), *(f"  {line}" for line in lines)]), err=err)


def answer(approved: bool, by: str | None, comment: str) -> Answer:
    """Return an answer given now with this command, by the given person or else the logged-in user."""
    return Answer(approved=approved, by=_text(login() if by is None else by), comment=_text(comment), when=now())


def login() -> str:
    """Return the login name of the user of this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _text(words: str) -> str:
    """Return words of a command line without characters that JSON cannot hold."""
    return words.encode(errors="replace").decode()
