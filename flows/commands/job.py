"""``job list | report | unfinished | delete | prune``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from flows.commands import complete
from flows.commands.options import Age, config_argument, job_argument, set_option
from flows.output import print_json, print_line

STATES = ("pending", "running", "waiting", "completed", "failed", "stopped", "interrupted", "cancelled")
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
    from flows.gate.decisions import as_decided
    from flows.job.running.sweep import notice
    from flows.job.session import has_any_job, opened
    from flows.jobs_dir import load
    from flows.reports.status import row_of, table

    loaded = load(config, overrides)
    after = None if since is None else datetime.now(UTC) - since
    records = []
    if has_any_job(loaded):
        with opened(loaded) as session:
            notice(session.api)
            found = (as_decided(session, record) for record in session.jobs(after))
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
@click.argument("configs", nargs=-1, required=True, metavar="CONFIG…", shell_complete=complete.files)
@click.option("--continue", "go", is_flag=True, help="First continue interrupted jobs, and stopped ones of a schedule.")
def unfinished(configs: tuple[str, ...], go: bool) -> int:
    """List jobs that need you. Jobs that did not finish, and runs that did not begin.

    Prints failed, waiting, stopped and interrupted jobs, each with the command that continues it, and runs of a
    deployment that are an hour overdue. The exit code is 0 if there are none. Run it every morning, by cron or a timer.
    CONFIG selects a jobs directory; one file for each is enough.
    """
    from flows.commands import continue_job as command

    return command.unfinished(configs, go=go)


@group.command()
@config_argument
@job_argument
@set_option
def delete(config: str, job: str, overrides: tuple[str, ...]) -> int:
    """Remove a job's directory and record. Refused while the job runs."""
    from flows.job import prune

    return prune.delete(config, job, overrides)


@group.command()
@config_argument
@click.option("--older-than", type=Age(), required=True, metavar="AGE", help="Age, such as P30D, 30d or 12h.")
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list of id, state, updated and bytes.")
@set_option
def prune(config: str, older_than: timedelta, dry_run: bool, as_json: bool, overrides: tuple[str, ...]) -> int:
    """Delete jobs that have not changed for longer than AGE. Removes directories and records.

    Deletes complete, failed, stopped, interrupted and cancelled jobs, never a job that runs, waits, or is scheduled.
    """
    from flows.job import prune

    return prune.prune(config, older_than, overrides, dry_run=dry_run, as_json=as_json)
