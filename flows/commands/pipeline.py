"""``pipeline start | continue | status | plan``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from flows.commands.options import (
    AnswerText,
    ServerJob,
    config_argument,
    job_argument,
    job_inputs,
    json_option,
    progress_option,
    set_option,
)
from flows.output import on_terminal, print_json, print_line, write

if TYPE_CHECKING:
    from flows.job.inputs import JobInputs
    from tasks.shared.errors import InputError


@click.group("pipeline")
def group() -> None:
    """Start, continue and watch a job."""


@group.command()
@job_inputs
@progress_option
@json_option
@click.option("--detach", is_flag=True, help="Hand the run to a Prefect deployment instead of running it here.")
def start(job: JobInputs, wrong: Sequence[InputError], no_progress: bool, as_json: bool, detach: bool) -> int:
    """Check everything, then run a new job. Prints the job id first.

    CRTDL is a JSON file, INPUT a directory, an HTTP(S) URL or the URL of an extraction result; either may be left out.
    """
    from flows.commands import start

    return start.start(job, wrong, progress=not no_progress, as_json=as_json, detach=detach)


@group.command()
@job_inputs
def plan(job: JobInputs, wrong: Sequence[InputError]) -> int:
    """Run the checks of start, and start nothing."""
    from flows.commands import start

    return start.plan(job, wrong)


@group.command("continue")
@config_argument
@job_argument
@click.option("--approve", is_flag=True, help="Approve a waiting job without asking.")
@click.option("--reject", is_flag=True, help="End a waiting job as cancelled.")
@click.option(
    "--by",
    type=AnswerText(),
    metavar="NAME",
    help="Name of the person who decides, for the record. Default: the login name.",
)
@click.option("--comment", type=AnswerText(), default="", metavar="TEXT", help="Comment, recorded with the decision.")
@click.option(
    "--from",
    "step",
    metavar="STEP",
    help="Name or position of a step: discard its results and those of all later steps first. Also of a complete job.",
)
@click.option(
    "--extraction",
    type=ServerJob(),
    metavar="ID|new",
    help="After a submission whose answer was lost: go on with this job of the server, or submit again.",
)
@click.option("--yes", is_flag=True, help="With --from: do not ask.")
@set_option
@progress_option
@json_option
def continue_(
    config: str,
    job: str,
    approve: bool,
    reject: bool,
    by: str | None,
    comment: str,
    step: str | None,
    extraction: str | None,
    yes: bool,
    overrides: tuple[str, ...],
    no_progress: bool,
    as_json: bool,
) -> int:
    """Continue a waiting, failed, stopped or interrupted job.

    A waiting job needs a decision. On a terminal, the command shows a summary of the release report, the data that the
    next step will read and their destination, and asks you to decide. In scripts, add --approve or --reject; without
    either, the job keeps waiting. If files or destination changed, the job waits again. If the release report has stops
    or could not be made, an approval needs a comment.
    """
    from flows.commands import continue_job

    if approve and reject:
        raise click.UsageError("--approve and --reject together: a job is either approved or rejected")
    if by is not None and not by.strip():
        raise click.UsageError("--by needs a name")
    if comment and not (approve or reject or on_terminal()):
        raise click.UsageError("--comment is recorded with a decision: add --approve or --reject")

    asked = continue_job.ContinueRequest(
        config, job, overrides, progress=not no_progress, as_json=as_json, extraction=extraction
    )
    if step is not None:
        if approve or reject or comment:
            raise click.UsageError("--from cannot be combined with a decision: the job asks again at its next wait")
        if not (yes or on_terminal()):
            raise click.UsageError("--from discards results: add --yes")
        return continue_job.go_on_from(asked, step, ask=not yes)
    decision = "approve" if approve else "reject" if reject else None
    return continue_job.go_on(asked, decision, by, comment)


@group.command()
@config_argument
@job_argument
@click.option("--json", "as_json", is_flag=True, help="One JSON object; keys are never left out.")
@click.option("--watch", is_flag=True, help="Refresh every two seconds while the job runs or is pending.")
@set_option
def status(config: str, job: str, as_json: bool, watch: bool, overrides: tuple[str, ...]) -> int:
    """Show the state of a job. Its steps, counts, progress, last error, and what it waits for."""
    from flows.gate.answers import with_answer
    from flows.job.session import opened
    from flows.job.state import JobState
    from flows.jobs_dir import load
    from flows.reports.status import status_of, text

    with opened(load(config, overrides), job) as session:
        job_id = session.find(job)
        while True:
            record = with_answer(session.api, session.job(job_id))
            if not as_json and watch:
                write("\x1b[2J\x1b[H")
            if as_json:
                print_json(status_of(record))
            else:
                print_line(text(record, config))
            if not watch or record.state not in {JobState.RUNNING, JobState.PENDING}:
                return 0
            time.sleep(2)
