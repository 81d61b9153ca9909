"""``job list | report | unfinished | delete | prune``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from flows.commands.options import Age, config_argument, job_argument, json_option, set_option, yes_option
from flows.job.lock import JobBusyError
from flows.job.state import JobState
from flows.jobs_dir import load
from flows.output import on_terminal, patience, print_json, print_line, write
from flows.shell import about
from tasks.shared.errors import InputError, StorageError

if TYPE_CHECKING:
    from flows.job.record import JobRecord

STOPS = 5
"""The exit code of ``job report --check`` if the report has stops."""


@click.group("job")
def group() -> None:
    """List jobs, show release reports, delete jobs.

    CONFIG is the YAML configuration file; it names the jobs directory. JOB is the id of a job, its first characters
    (four or more), or latest.
    """


@group.command("list")
@config_argument
@json_option
@click.option("--state", type=click.Choice([one.value for one in JobState]), help="Only jobs in this state.")
@click.option("--since", type=Age(), metavar="AGE", help="Only jobs requested within this time, such as 12h or 7d.")
@set_option
def list_(config: str, as_json: bool, state: str | None, since: timedelta | None, overrides: tuple[str, ...]) -> None:
    """List the jobs of a jobs directory, newest first.

    With their state and step, and why they failed or what they wait for.
    """
    from flows.gate.answers import with_answer
    from flows.job.find import has_any_job, opened
    from flows.reports.status import row_of, table

    loaded = load(config, overrides)
    after = None if since is None else datetime.now(UTC) - since
    records = []
    if has_any_job(loaded):
        with opened(loaded) as session:
            records = [with_answer(session.api, record) for record in session.jobs()]
    records = [record for record in records if state is None or record.state.value == state]
    records = [one for one in records if after is None or datetime.fromisoformat(str(one.created)) >= after]
    if as_json:
        print_json([row_of(record) for record in records])
    else:
        print_line(table(records) if records else "no such jobs" if state or after else "no jobs")


@group.command()
@config_argument
@job_argument
@click.option("--open", "browser", is_flag=True, help="Open the page in a browser.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON instead of the page.")
@click.option("--check", is_flag=True, help="Exit code 5 if the report has stops.")
@set_option
def report(config: str, job: str, browser: bool, as_json: bool, check: bool, overrides: tuple[str, ...]) -> int:
    """Show where the release report of a job is, and what it found.

    Prints the path of its page, the stops, and the points to check. It is the newest report: for the decision that the
    job waits for, or of the job's end. A missing one is made first. Without --check the exit code is 0 even if the
    report has stops.
    """
    import webbrowser

    from flows.job.directory import JobDirectory
    from flows.job.find import opened
    from tasks.release_report import files
    from tasks.release_report.markdown import lines

    with opened(load(config, overrides)) as session:
        record = session.job(session.find(job))
        directory = JobDirectory.of(session.jobs_dir, record.id).path
    if _report_is_due(record):
        record = _made_again(config, record.id, overrides)
    shown = record.reports[-1] if record.reports else None
    found = files.read(directory) if shown is not None and shown.page is not None else None
    if found is None:
        raise InputError(
            "no-report", "this job has no release report", context=shown.failed if shown is not None else None,
            hint="reports are made before a decision and at the end; job.log gives the reason",
        )  # fmt: skip
    page = files.page_of(directory)
    if as_json:
        write(f"{found.model_dump_json(indent=2)}\n")
    else:
        print_line("\n".join([str(page), *lines(found)]))
    if browser and not webbrowser.open(page.as_uri()):
        print_line("no browser found: open the file above yourself", err=True)
    return STOPS if check and found.number_of("stop") else 0


def _report_is_due(record: JobRecord) -> bool:
    """Return whether the report of a waiting or complete job is missing."""
    waiting = record.undecided
    shown = record.shown.get(waiting.position) if waiting is not None else record.shown_at_the_end
    return (waiting is not None or record.done) and (shown is None or shown.page is None)


def _made_again(config: str, job_id: str, overrides: tuple[str, ...]) -> JobRecord:
    """Run a waiting or complete job once more to make its release report. Print to stderr.

    Raises:
        InputError: the workers of a deployment run the job.
    """
    from flows.session import execute, taken_up

    with taken_up(config, job_id, overrides) as (session, record, _):
        if record.has_deployment:
            raise InputError(
                "job-deployed", "the workers of the job's deployment make its report", context=record.id,
                hint=f"to hand the job to them: {about('pipeline continue', record.id)}",
            )  # fmt: skip
        execute(session, record.id, progress=False, aside=True)
        return session.job(record.id)


@group.command()
@config_argument
@click.option("--continue", "go", is_flag=True, help="Put those that a schedule started back to their worker.")
@set_option
def unfinished(config: str, go: bool, overrides: tuple[str, ...]) -> int:
    """List jobs that were cut off.

    Their process is gone, and nobody stopped them. The exit code is 1 if there are some. With --continue, those that a
    schedule started go on with their worker, at most three times each, and the exit code is 0.
    """
    from flows.job.find import has_any_job, opened
    from flows.job.unfinished import look

    loaded = load(config, overrides)
    if not has_any_job(loaded):
        return 0
    with opened(loaded) as session:
        found = [*look(session, go=go)]
    for line in found:
        print_line(line)
    return 1 if found and not go else 0


@group.command()
@config_argument
@job_argument
@yes_option
@set_option
def delete(config: str, job: str, yes: bool, overrides: tuple[str, ...]) -> int:
    """Remove a job's directory and record. Refused while the job runs or waits."""
    from flows.job.find import opened
    from flows.job.prune import remove

    with opened(load(config, overrides)) as session:
        job_id = session.find(job)
        session.job(job_id)
        if confirmed(f"Delete job {job_id} with its files?", yes=yes):
            with patience(f"deleting job {job_id}"):
                remove(session, job_id)
            print_line(f"job {job_id} is deleted")
    return 0


@group.command()
@config_argument
@click.option("--older", "older_than", type=Age(), required=True, metavar="AGE", help="Age, such as 30d or 12h.")
@yes_option
@set_option
def prune(config: str, older_than: timedelta, yes: bool, overrides: tuple[str, ...]) -> int:
    """Delete jobs that have not changed for longer than AGE.

    Removes directories and records. A job that runs, waits, or is scheduled is kept.
    """
    from flows.job.find import has_any_job, opened
    from flows.job.prune import old_jobs, remove

    loaded, code = load(config, overrides), 0
    if not has_any_job(loaded):
        return 0
    with opened(loaded) as session:
        old = old_jobs(session, older_than)
        for record in old:
            print_line(f"job {record.id}  {record.state.value}  {record.updated}")
        if not old:
            print_line("no job is that old")
        elif confirmed(f"Delete these {len(old)} jobs with their files?", yes=yes):
            for record in old:
                try:
                    with patience(f"deleting job {record.id}"):
                        remove(session, record.id)
                except JobBusyError:
                    continue  # it was continued meanwhile
                except StorageError as error:
                    print_line(error.render(), err=True)
                    code = 1
    return code


def confirmed(question: str, *, yes: bool) -> bool:
    """Return whether a person agrees: with ``--yes``, or asked on a terminal."""
    if not (yes or on_terminal()):
        raise click.UsageError("this deletes data: add --yes")
    return yes or click.confirm(question, default=False)
