"""Ask a person on the terminal to decide a wait, or take the decision from the command's options."""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import click

from config import PipelineConfig
from flows.commands.options import AnswerText
from flows.gate import rules
from flows.gate.decisions import save_decision
from flows.gate.reviewed_files import (
    CHANGED,
    CORRECTED,
    ReviewedFiles,
    digest_at_decision,
    report_lines,
    to_be_read,
    where_to_look,
)
from flows.job.directory import JobDirectory
from flows.job.inputs import JobInputs
from flows.job.record import JobRecord, now
from flows.job.session import Session
from flows.job.steps import destinations
from flows.job.writer import RecordWriter
from flows.output import print_line
from tasks.shared.errors import DataError
from tasks.shared.report import Approval, Waiting, visible_text


@dataclass(frozen=True)
class DecisionArgs:
    """The parts of a decision given on the command line; ``by`` is ``None`` if it is not given yet."""

    by: str | None = None
    comment: str = ""


NO_DECISION_ARGS = DecisionArgs()


def ask_decision(waiting: Waiting, config: PipelineConfig, given: DecisionArgs, *, err: bool) -> DecisionArgs | None:
    """Show the short release report, the input of the next step and its destination, and ask for a decision, a name
    and a comment. Return ``None`` if nothing is decided.

    In English, like the rest of the terminal; the lines of the report are in its own language.
    """
    source, files = to_be_read(waiting)
    print_line(f"step {waiting.position} waits since {waiting.since}; {waiting.reader} will read {source}:", err=err)
    for file in files:
        print_line(f"  {file}", err=err)
    for step, where in destinations(config, waiting.position):
        print_line(f"then {step}: to {where}", err=err)
    show_report(waiting, err=err)
    if not click.confirm("Release it?", default=False, err=err):
        return None
    by, comment = given.by, given.comment
    ask = partial(click.prompt, type=AnswerText(), err=err)
    if by is None:
        by = str(ask("Your name", default=login()))
    if not visible_text(comment):
        comment = str(ask("Comment (recorded with the decision)", default="", show_default=False))
    return DecisionArgs(by, comment)


def show_report(waiting: Waiting, *, err: bool) -> None:
    """Print the short release report before a decision."""
    for line in report_lines(waiting):
        print_line(line, err=err)


def still_waiting(job_id: str, waiting: Waiting, *, err: bool) -> None:
    """Print that nothing is decided, and what the job waits for; ``report`` prints which command decides."""
    print_line(f"nothing is decided: job {job_id} waits at step {waiting.position} for a person's decision", err=err)
    print_line("\n".join(where_to_look(waiting)), err=err)


def decision_of(answer: bool, given: DecisionArgs, *, files: str = "") -> Approval:
    """Return a decision made now with this command, by the given person or else the logged-in user.

    ``files`` is the digest of the reviewed files.
    """
    return Approval(
        approved=answer,
        by=_text(login() if given.by is None else given.by),
        comment=_text(given.comment),
        when=now(),
        where="cli",
        files=files,
    )


def login() -> str:
    """Return the login name of the user of this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _text(words: str) -> str:
    """Return words of a command line without characters that JSON cannot hold."""
    return words.encode(errors="replace").decode()


Released = Literal["decided", "again", "open"]
"""What became of a release: it is kept; the files or the report changed, so that the job waits once more; or nobody
decided.
"""


def release(
    session: Session,
    record: JobRecord,
    inputs: JobInputs,
    waiting: Waiting,
    given: DecisionArgs,
    *,
    ask_first: bool,
    err: bool,
) -> Released:
    """Record a release of the waiting data, after showing the release report, and return its result."""
    place = JobDirectory.of(session.jobs_dir, record.id).path
    files = digest_at_decision(place, record, waiting)
    config = inputs.load().config
    why = rules.to_be_made(place, waiting.report, files, config)
    if why is not None and not (why == rules.NOT_MADE and visible_text(given.comment)):
        make_again(session, record, place, why, err=err)
        return "again"
    if not ask_first:
        show_report(waiting, err=err)
    elif (answer := ask_decision(waiting, config, given, err=err)) is not None:
        given = answer
    else:
        still_waiting(record.id, waiting, err=err)
        return "open"
    save_decision(session, record, decision_of(True, given, files=files))
    return "decided"


def make_again(session: Session, record: JobRecord, job: Path, why: str, *, err: bool) -> None:
    """Print that nothing is decided, and prepare the run that makes the report and lets the job wait again."""
    if record.undecided is None:
        print_line(f"{why}; it is made now", err=err)
        return
    now = "" if why in (CHANGED, CORRECTED) else "the report is made now, and "
    print_line(f"nothing is decided: {why}; {now}the job waits again", err=err)
    print_unusable_corrections(job, record.undecided)
    # Nobody has answered the form.
    RecordWriter(session.api, record.id).set(**{f"form__{record.undecided.position}": None})


def print_unusable_corrections(job: Path, waiting: Waiting) -> None:
    """Print on stderr why the corrected files could not be used as they are."""
    try:
        ReviewedFiles.of(job, waiting).check()
    except DataError as error:
        print_line(error.render(), err=True)
