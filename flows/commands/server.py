"""``server start | stop | status``."""

from __future__ import annotations

import click

from flows.commands import complete

_where = click.option(
    "--jobs-dir",
    default=None,
    metavar="DIR",
    shell_complete=complete.folders,
    help="Jobs directory whose server is meant [default: APP_JOBS_DIR or ./jobs].",
)


@click.group("server")
def group() -> None:
    """The local Prefect server with its UI, in the background."""


@group.command()
@click.argument("config", required=False, shell_complete=complete.files)
@_where
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=4200,
    show_default=True,
    help="Port on 127.0.0.1; 0 takes a free one.",
)
def start(config: str | None, jobs_dir: str | None, port: int) -> int:
    """Start the server and print the link that opens its UI. CONFIG names the jobs directory by its jobs_dir."""
    from flows.engine import background_server

    return background_server.start(background_server.home_of(config, jobs_dir), port)


@group.command()
@click.argument("config", required=False, shell_complete=complete.files)
@_where
def stop(config: str | None, jobs_dir: str | None) -> int:
    """Stop the server. Refused while a job runs on it."""
    from flows.engine import background_server

    return background_server.stop(background_server.home_of(config, jobs_dir))


@group.command()
@click.argument("config", required=False, shell_complete=complete.files)
@_where
def status(config: str | None, jobs_dir: str | None) -> int:
    """Say whether the server answers, and the link that opens its UI."""
    from flows.engine import background_server

    return background_server.status(background_server.home_of(config, jobs_dir))
