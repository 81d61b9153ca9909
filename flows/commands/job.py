"""``job list | report | unfinished | delete | prune``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from flows.commands.options import Age, config_argument, job_argument, set_option, yes_option
from flows.output import on_terminal, print_json, print_line

STATES = ("pending", "running", "waiting", "completed", "failed", "stopped", "interrupted", "cancelled", "decided")
"""The states that a job is shown in, as the record has them."""


@click.group("job")
def group() -> None:
    """List jobs, show release reports, delete."""


@group.command("list")
@config_argument
@click.option("--json", "as_json", is_flag=True, help="A JSON list.")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="Only jobs in this state; repeatable."
)
@click.option(
    "--since",
    type=Age(),
    metavar="AGE",
    help="Only jobs requested since then, such as 12h or 7d.",
)
@set_option
def list_(
    config: str, as_json: bool, states: tuple[str, ...], since: timedelta | None, overrides: tuple[str, ...]
) -> int:
    """List the jobs of a jobs directory, newest first. States, names, why they failed or what they wait for."""
    from flows.gate.answers import with_answer
    from flows.job.session import has_any_job, opened
    from flows.jobs_dir import load
    from flows.reports.status import row_of, table

    loaded = load(config, overrides)
    after = None if since is None else datetime.now(UTC) - since
    records = []
    if has_any_job(loaded):
        with opened(loaded) as session:
            found = (with_answer(session.api, record) for record in session.jobs(after))
            records = [record for record in found if not states or record.state.value in states]
    if as_json:
        print_json([row_of(record) for record in records])
    elif records:
        print_line(table(records))
    else:
        print_line("no such jobs" if states or after else "no jobs")
    return 0


@group.command()
@config_argument
@job_argument
@click.option("--open", "browser", is_flag=True, help="Open the page in a browser.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON instead of the page.")
@click.option("--check", is_flag=True, help="Exit code 5 if the report has stops, 1 if files were edited.")
@set_option
def report(
    config: str,
    job: str,
    browser: bool,
    as_json: bool,
    check: bool,
    overrides: tuple[str, ...],
) -> int:
    """Show the release report of a job. The path of its page, the stops, and the points to check.

    This is the newest report: for the decision that the job waits for, or of the job's end. It is made again first if
    it failed or, while the job waits, if files changed. The exit code is 0 even if the report has stops. With --check
    it is then 5, and 1 if the data files are not those that the report covers.
    """
    from flows.commands import report as command

    return command.report(config, job, overrides, as_json=as_json, browser=browser, check=check)


@group.command()
@config_argument
@click.option("--continue", "go", is_flag=True, help="Put those that a schedule started back to their worker.")
@set_option
def unfinished(config: str, go: bool, overrides: tuple[str, ...]) -> int:
    """List jobs that were cut off: their process is gone, and nobody stopped them.

    The exit code is 1 if there are some. With --continue, those that a schedule started go on with their worker, at
    most three times each, and the exit code is 0.
    """
    from flows.job.session import has_any_job, opened
    from flows.job.unfinished import look
    from flows.jobs_dir import load

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
    from flows.job.prune import remove
    from flows.job.session import opened
    from flows.jobs_dir import load

    with opened(load(config, overrides), job) as session:
        job_id = session.find(job)
        session.job(job_id)
        if confirmed(f"Delete job {job_id} with its files?", yes=yes):
            remove(session, job_id)
            print_line(f"job {job_id} is deleted")
    return 0


@group.command()
@config_argument
@click.option("--older", "older_than", type=Age(), required=True, metavar="AGE", help="Age, such as 30d or 12h.")
@yes_option
@set_option
def prune(config: str, older_than: timedelta, yes: bool, overrides: tuple[str, ...]) -> int:
    """Delete jobs that have not changed for longer than AGE. Removes directories and records.

    Deletes complete, failed, stopped, interrupted and cancelled jobs, never a job that runs, waits, or is scheduled.
    """
    from flows.job.lock import JobBusyError
    from flows.job.prune import old_jobs, remove
    from flows.job.session import has_any_job, opened
    from flows.jobs_dir import load
    from tasks.shared.errors import StorageError

    loaded, code = load(config, overrides), 0
    if not has_any_job(loaded):
        return 0
    with opened(loaded) as session:
        old = old_jobs(session, older_than)
        for record in old:
            print_line(f"job {record.id}  {record.state.value}  {record.updated}")
        if not old or not confirmed(f"Delete these {len(old)} jobs with their files?", yes=yes):
            return 0
        for record in old:
            try:
                remove(session, record.id)
            except JobBusyError:
                continue  # it goes on meanwhile
            except StorageError as error:
                print_line(error.render(), err=True)
                code = 1
    return code


def confirmed(question: str, *, yes: bool) -> bool:
    """Return whether a person agrees: with ``--yes``, or asked on a terminal."""
    if not (yes or on_terminal()):
        raise click.UsageError("this deletes data: add --yes")
    return yes or click.confirm(question, default=False)
