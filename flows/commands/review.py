"""A person's answer at a wait, from the terminal or from options. The flow judges it."""

from __future__ import annotations

import getpass
import os

import click

from flows.gate.answers import answer_left
from flows.job.record import JobRecord, now
from flows.job.state import JobState
from flows.job.waiting import Answer
from flows.output import on_terminal, print_line
from flows.prefect.api import PrefectApi
from flows.reports.waiting import terminal_text
from tasks.shared.errors import InputError, TerminalError

REFUSED = 5
"""The exit code of a decision that the flow did not accept."""


def of_options(approve: bool, reject: bool, by: str | None, comment: str) -> Answer | None:
    """Return the answer that the options of ``continue`` give, if any."""
    if approve and reject:
        raise click.UsageError("--approve and --reject together: a job is either approved or rejected")
    if comment and not (approve or reject or on_terminal()):
        raise click.UsageError("--comment is recorded with a decision: add --approve or --reject")
    if by is not None and not by.strip():  # an empty variable in --by "$REVIEWER" would mean the user of the script
        raise click.UsageError("--by needs a name")
    return answer(approve, by, comment) if approve or reject else None


def refuse_ended(record: JobRecord, given: Answer | None) -> None:
    """Raise ``TerminalError`` for a cancelled job, ``InputError`` for an answer without a wait."""
    if record.state is JobState.CANCELLED:
        raise TerminalError(
            "job-cancelled", "the job was cancelled and cannot be continued", context=record.id, hint="start a new job"
        )
    if given is not None and record.undecided is None:
        raise InputError(
            "not-waiting", f"the job is {record.state.value}, so there is nothing to decide", context=record.id,
            hint="continue it without --approve, --reject and --comment",
        )  # fmt: skip


def decided(
    api: PrefectApi, record: JobRecord, given: Answer | None, by: str | None, comment: str, *, err: bool
) -> tuple[Answer | None, bool]:
    """Return the answer, and whether the job goes on: not if it is complete, or still waits for an answer.

    Without an answer, show the findings and the data that will leave. On a terminal, ask for one.
    """
    waiting = record.undecided
    if record.done or given or waiting is None or answer_left(api, record, waiting.position):
        return given, not record.done
    print_line(terminal_text(record, waiting), err=err)
    if on_terminal():
        given = prompt(by, comment, err=err)
    else:
        print_line(f"nothing is decided: job {record.id} waits", err=err)
    return given, given is not None or record.in_prefect != "PAUSED"


def prompt(by: str | None = None, comment: str = "", *, err: bool = False) -> Answer | None:
    """Ask on the terminal for a decision, a name and a comment; ``None`` if the job is not released."""
    if not click.confirm("Release the data? (no: the job keeps waiting)", default=False, err=err):
        return None
    name = by or click.prompt("Your name", default=login(), err=err)
    said = comment or click.prompt("Comment (recorded with the decision)", default="", show_default=False, err=err)
    return answer(True, name, said)


def answer(approved: bool, by: str | None, comment: str) -> Answer:
    """Return an answer given now with this command, by the given person or else the logged-in user."""
    by, comment = ((text or "").encode(errors="replace").decode() for text in (by or login(), comment))
    return Answer(approved=approved, by=by, comment=comment, when=now())


def login() -> str:
    """Return the login name of the user of this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
