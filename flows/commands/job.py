"""``job list | run | delete | prune``."""

from __future__ import annotations

from datetime import timedelta

import click

from flows.commands.options import config_argument, job_argument, no_progress_option, set_option, status_option


@click.group("job")
def group() -> None:
    """List jobs, run one step again, delete jobs."""


@group.command("list")
@config_argument
@click.option("--json", "as_json", is_flag=True, help="A JSON list.")
@set_option
def list_(config: str, as_json: bool, overrides: tuple[str, ...]) -> int:
    """List the jobs of a configuration's jobs directory, newest first."""
    from flows.commands import status

    return status.list_jobs(config, overrides=overrides, as_json=as_json)


@group.command()
@config_argument
@job_argument
@click.option(
    "--step", required=True, metavar="STEP", help="Name of the step, or its position when the name occurs twice."
)
@click.option(
    "--force", is_flag=True, help="Run a completed step again; resets the steps after it, removes their outputs."
)
@set_option
@no_progress_option
@status_option
def run(
    config: str,
    job: str,
    step: str,
    force: bool,
    overrides: tuple[str, ...],
    no_progress: bool,
    as_json: bool,
) -> int:
    """Run one step of a job again, and stop after it."""
    from flows.commands import continue_job

    asked = continue_job.Asked(config, job, overrides, progress=not no_progress, as_json=as_json)
    return continue_job.run_one(asked, step=step, force=force)


@group.command()
@config_argument
@job_argument
@set_option
def delete(config: str, job: str, overrides: tuple[str, ...]) -> int:
    """Remove a job's directory and record. Refused while it runs."""
    from flows.job import prune

    return prune.delete(config, job, overrides)


class Age(click.ParamType[timedelta]):
    """A duration, as in the configuration."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Read it, or say what is wrong with it."""
        from config.duration import DurationError, parse_duration

        if isinstance(value, timedelta):
            return value
        try:
            return parse_duration(str(value))
        except DurationError as error:
            return self.fail(f"{value!r}: {error}", param, ctx)


@group.command()
@config_argument
@click.option("--older-than", type=Age(), required=True, metavar="AGE", help="How long ago, as P30D, 30d or 12h.")
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list of id, state, updated and bytes.")
@set_option
def prune(config: str, older_than: timedelta, dry_run: bool, as_json: bool, overrides: tuple[str, ...]) -> int:
    """Delete the jobs that nothing happened to for longer than AGE, directories and records.

    Complete, failed, stopped, interrupted and cancelled ones; never a job that runs, waits, or is scheduled.
    """
    from flows.job import prune

    return prune.prune(config, older_than, overrides, dry_run=dry_run, as_json=as_json)
