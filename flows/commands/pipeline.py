"""``pipeline start | plan | continue | status``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows.commands.options import (
    config_argument,
    job_argument,
    job_inputs,
    json_option,
    progress_option,
    server_job,
    set_option,
)
from flows.jobs_dir import load
from flows.output import on_terminal, print_findings, print_json, print_line, write
from tasks.shared.errors import InputError, SluiceError
from tasks.shared.units import human_count

if TYPE_CHECKING:
    from config import Finding, LoadedConfig
    from flows.job.find import Session
    from flows.job.inputs import JobInputs
    from flows.job.record import JobRecord
    from flows.job.waiting import Answer


@click.group("pipeline")
def group() -> None:
    """Start, continue and watch a job.

    CONFIG is the YAML configuration file. JOB is the id of a job, its first characters (four or more), or latest.
    """


@group.command()
@job_inputs
@progress_option
@json_option
@click.option("--detach", is_flag=True, help="Hand the run to a Prefect deployment instead of running it here.")
def start(inputs: JobInputs, wrong: Sequence[SluiceError], no_progress: bool, as_json: bool, detach: bool) -> int:
    """Check everything, then run a new job. Prints the job id first.

    CRTDL is the query, a JSON file; the steps extractor and flattening need it. INPUT is what the import step reads, if
    not what the configuration names: a directory, an HTTP(S) URL, or the URL of an extraction result. With --json, the
    job's status is printed as JSON at the end.
    """
    from flows.job.find import opened
    from flows.prefect.api import run_deployment
    from flows.session import execute, new_job, outcome, with_prefect

    loaded = _read(inputs, wrong)
    said = _check(loaded, inputs)
    if detach:
        with opened(loaded) as session:
            job_id = run_deployment(session.api, inputs.parameters())
            return _left_to_worker(session, job_id, f"job {job_id}", as_json=as_json)
    with with_prefect(loaded) as session, new_job(session, inputs) as job_id:
        print_line(f"job {job_id}", err=as_json)
        execute(session, job_id, progress=not no_progress, aside=as_json, said=said)
        return outcome(session, job_id, as_json=as_json)


@group.command()
@job_inputs
def plan(inputs: JobInputs, wrong: Sequence[SluiceError]) -> None:
    """Run the checks of start, and start nothing.

    Prints every finding. CRTDL and INPUT are as for start.
    """
    loaded = _read(inputs, wrong)
    warned = len(loaded.warnings) + len(_check(loaded, inputs))
    found = human_count(warned, "warning") + "." if warned else "All checks passed."
    print_line(f"{found} The job can start.")


@group.command("continue")
@config_argument
@job_argument
@click.option("--approve", is_flag=True, help="Approve a waiting job without asking.")
@click.option("--reject", is_flag=True, help="End a waiting job as cancelled.")
@click.option("--by", metavar="NAME", help="Name of the person who decides [default: the login name].")
@click.option("--comment", default="", metavar="TEXT", help="Comment, recorded with the decision.")
@click.option(
    "--from",
    "step",
    metavar="STEP",
    help="Name or position of a step: run it and all later ones again, after their results are discarded. A complete "
    "job can be continued like this, too.",
)
@click.option(
    "--extraction",
    metavar="ID|new",
    callback=server_job,
    help="After a submission whose answer was lost: go on with this job of the server, or submit again.",
)
@click.option("--yes", is_flag=True, help="With --from: do not ask.")
@set_option
@progress_option
@json_option
def continue_(
    config: str,
    job: str,
    overrides: tuple[str, ...],
    step: str | None,
    extraction: str | None,
    yes: bool,
    no_progress: bool,
    as_json: bool,
    **decision: Any,
) -> int:
    """Continue a waiting, failed, stopped or interrupted job.

    A waiting job needs a decision. On a terminal, the command shows the findings of the release report, the data that
    the next step will read and their destination, and asks you to decide. In scripts, add --approve or --reject;
    without either, the job keeps waiting. An approval despite stops needs a comment. If the files or the destination
    changed since they were shown, the job waits again.
    """
    from flows.commands import review
    from flows.job.find import step_to_repeat
    from flows.session import outcome, taken_up

    answer = review.of_options(**decision)
    if step is not None and (answer or decision["comment"]):
        raise click.UsageError("--from cannot be combined with a decision: the job asks again at its next wait")
    if step is not None and not (yes or on_terminal()):
        raise click.UsageError("--from discards results: add --yes")
    with taken_up(config, job, overrides, extraction) as (session, record, inputs):
        print_line(f"job {record.id}", err=as_json)
        review.refuse_ended(record, answer)
        position = step_to_repeat(record, step) if step is not None else None
        if position is not None:
            name = f"{position}, {record.steps[position - 1].name}"
            question = f"Discard the results of step {name}, and of all later steps?"
            goes_on = yes or click.confirm(question, err=as_json)
        else:
            by, comment = decision["by"], decision["comment"]
            answer, goes_on = review.decided(session.api, record, answer, by, comment, err=as_json)
        if not goes_on:
            return outcome(session, record.id, as_json=as_json)
        return _go_on(
            session, record, inputs, answer=answer, position=position, progress=not no_progress, as_json=as_json
        )


def _go_on(
    session: Session, record: JobRecord, inputs: JobInputs, *,
    answer: Answer | None, position: int | None, progress: bool, as_json: bool,
) -> int:  # fmt: skip
    """Check the remaining steps, record the answer or the reset, and run the job here or give it to its worker."""
    from flows.commands.review import REFUSED
    from flows.job.record import RecordWriter, at
    from flows.session import execute, outcome

    waiting = record.undecided
    rejects = answer is not None and not answer.approved
    said = [] if rejects else _check_rest(session, record, inputs, position or record.reset)
    writer = RecordWriter(session.api, record.id)
    if position is not None:
        writer.reset_from(record, position)
    elif waiting and answer:
        writer.write({at("answer", waiting.position): answer})
    session.api.change(record.id, parameters=inputs.parameters())
    if record.has_deployment:
        session.api.set_state(record.id, "SCHEDULED", name="Continuing")
        said_so = f"job {record.id}: a worker of its deployment continues it"
        return _left_to_worker(session, record.id, said_so, as_json=as_json)
    execute(session, record.id, progress=progress, aside=as_json, said=said)
    code = outcome(session, record.id, as_json=as_json)
    again = session.job(record.id).undecided
    return REFUSED if answer and again and again.reason else code


@group.command()
@config_argument
@job_argument
@click.option("--json", "as_json", is_flag=True, help="One JSON object; keys are never left out.")
@click.option("--watch", is_flag=True, help="Refresh every two seconds while the job runs or is pending.")
@set_option
def status(config: str, job: str, as_json: bool, watch: bool, overrides: tuple[str, ...]) -> None:
    """Show the state of a job.

    With its steps, counts, progress, last error, and what it waits for.
    """
    from flows.gate.answers import with_answer
    from flows.job.find import opened
    from flows.job.state import JobState
    from flows.reports.status import status_of, text

    with opened(load(config, overrides)) as session:
        job_id = session.find(job)
        while True:
            record = with_answer(session.api, session.job(job_id))
            if as_json:
                print_json(status_of(record))
            else:
                write(("\x1b[2J\x1b[H" if watch else "") + text(record) + "\n")
            if not watch or record.state not in {JobState.RUNNING, JobState.PENDING}:
                return
            time.sleep(2)


def _read(inputs: JobInputs, wrong: Sequence[SluiceError]) -> LoadedConfig:
    """Return the configuration of a new job. If it or an argument has errors, print all findings and exit."""
    from config import ConfigError
    from flows.job.preflight import file_findings

    findings: list[SluiceError | Finding] = [*wrong]
    try:
        loaded = inputs.load()
        if not wrong:
            return loaded
        findings += [*loaded.warnings, *file_findings(loaded.config, inputs.step_inputs())]
    except ConfigError as error:
        findings += error.findings
    except InputError as error:  # the jobs directory is unsafe
        findings.append(error)
    print_findings(findings)
    return click.get_current_context().exit(2)


def _check(
    loaded: LoadedConfig, inputs: JobInputs, *, done: Iterable[int] = (), job_dir: Path | None = None
) -> list[str]:
    """Check all steps except those at the positions ``done``, and print the findings. Exit if there are errors.

    Return the warnings, so that the steps do not repeat them.
    """
    from flows.job.preflight import preflight
    from flows.job.problem import exit_code

    said: list[str] = []

    def doubt(text: str) -> None:
        if text not in said:
            said.append(text)
            print_line(f"warning: {text}", err=True)

    print_findings(loaded.warnings)
    findings = preflight(loaded, inputs, done=done, job_dir=job_dir, tell=doubt)
    print_findings(findings)
    if findings:
        click.get_current_context().exit(exit_code(findings))
    return said


def _check_rest(session: Session, record: JobRecord, inputs: JobInputs, position: int | None) -> list[str]:
    """Check the steps that are not complete, and with a ``position`` all steps from there on, as ``_check`` does."""
    kept = record.steps if position is None else record.steps[: position - 1]
    done = [step.position for step in kept if step.state == "completed"]
    return _check(session.loaded, inputs, done=done, job_dir=session.jobs_dir / record.id)


def _left_to_worker(session: Session, job_id: str, said: str, *, as_json: bool) -> int:
    """Print ``said`` about a job that a worker runs, and with ``as_json`` its status; return the exit code."""
    from flows.reports.status import status_of

    print_line(said, err=as_json)
    if as_json:
        print_json(status_of(session.job(job_id)))
    return 0
