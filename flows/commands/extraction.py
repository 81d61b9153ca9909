"""``extraction preview | list | show | pause | resume | cancel | delete | prioritize``. Never imports Prefect."""

from __future__ import annotations

from collections.abc import Callable

import click

_STATUSES = (
    "PENDING", "RUNNING_GET_COHORT", "RUNNING_PROCESS_BATCH", "RUNNING_PROCESS_CORE", "PAUSED", "TEMP_FAILED",
    "COMPLETED", "FAILED", "CANCELLED",
)  # fmt: skip


@click.group("extraction")
def group() -> None:
    """Preview a cohort; list and control the jobs of the extraction server."""


_config = click.argument("config")
_ids = click.argument("ids", nargs=-1, required=True, metavar="ID…")
_set = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a configuration key; repeatable."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _on_jobs(function: Callable[..., int]) -> Callable[..., int]:
    """The arguments and options that the commands on single jobs share."""
    for decorate in (_json, _set, _ids, _config):
        function = decorate(function)
    return function


@group.command()
@_config
@click.argument("crtdl")
@click.option(
    "--ids", "target", metavar="FILE", help="Write the patient ids there, one a line, as --patients reads them."
)
@_set
@_json
def preview(config: str, crtdl: str, target: str | None, overrides: tuple[str, ...], as_json: bool) -> int:
    """Print how many patients a CRTDL selects. CRTDL may also be a bare cohort definition (CCDL).

    The server evaluates the cohort, creates no job and stores nothing.
    """
    from flows import extraction

    return extraction.preview(config, crtdl, target=target, overrides=overrides, as_json=as_json)


@group.command("list")
@_config
@click.argument("ids", nargs=-1, metavar="[ID…]")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(_STATUSES, case_sensitive=False),
    help="Only jobs in this state; repeatable.",
)
@click.option("--lenient", is_flag=True, help="Let the server ignore what it does not understand of the search.")
@_set
@_json
def list_(
    config: str,
    ids: tuple[str, ...],
    statuses: tuple[str, ...],
    lenient: bool,
    overrides: tuple[str, ...],
    as_json: bool,
) -> int:
    """List the server's extraction jobs, newest first."""
    from flows import extraction

    return extraction.list_jobs(
        config, ids, statuses=statuses, strict=not lenient, overrides=overrides, as_json=as_json
    )


@group.command()
@_on_jobs
def show(config: str, ids: tuple[str, ...], overrides: tuple[str, ...], as_json: bool) -> int:
    """Show jobs: state, priority, times, and how far they are."""
    from flows import extraction

    return extraction.show(config, ids, overrides=overrides, as_json=as_json)


@group.command()
@_on_jobs
def pause(config: str, ids: tuple[str, ...], overrides: tuple[str, ...], as_json: bool) -> int:
    """Pause running jobs. A batch that is under way is finished."""
    from flows import extraction

    return extraction.change(config, ids, "pause", overrides=overrides, as_json=as_json)


@group.command()
@_on_jobs
def resume(config: str, ids: tuple[str, ...], overrides: tuple[str, ...], as_json: bool) -> int:
    """Resume paused jobs where they were."""
    from flows import extraction

    return extraction.change(config, ids, "resume", overrides=overrides, as_json=as_json)


@group.command()
@_on_jobs
def cancel(config: str, ids: tuple[str, ...], overrides: tuple[str, ...], as_json: bool) -> int:
    """Cancel jobs for good. A pipeline that waits for one ends with an error."""
    from flows import extraction

    return extraction.change(config, ids, "cancel", overrides=overrides, as_json=as_json)


@group.command()
@_on_jobs
def delete(config: str, ids: tuple[str, ...], overrides: tuple[str, ...], as_json: bool) -> int:
    """Remove jobs and their result files from the server, also while they run."""
    from flows import extraction

    return extraction.delete(config, ids, overrides=overrides, as_json=as_json)


@group.command()
@_on_jobs
@click.option(
    "--priority",
    type=click.Choice(["high", "normal"]),
    default="high",
    show_default=True,
    help="High jobs are taken before normal ones.",
)
def prioritize(config: str, ids: tuple[str, ...], overrides: tuple[str, ...], as_json: bool, priority: str) -> int:
    """Change the priority of jobs. The version is read again when it has moved on in between."""
    from flows import extraction

    return extraction.prioritize(config, ids, priority, overrides=overrides, as_json=as_json)
