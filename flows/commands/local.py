"""``demo``, ``sandbox`` and ``server``: programs that serve this machine only."""

from __future__ import annotations

from pathlib import Path

import click

from flows.commands import complete


@click.command("demo")
@click.option("--keep", is_flag=True, help="Keep this demo's files; without it the next demo replaces them.")
@click.option("--review", is_flag=True, help="Include a wait, at which you review the files and decide.")
def demo(keep: bool, review: bool) -> int:
    """Run a whole pipeline on this machine, on made-up data.

    It starts sandbox services on loopback and queries their extraction server. Each step prints a summary line; the
    paths of the files are printed at the end.
    """
    from flows import demo as whole

    return whole.run(keep=keep, review=review)


@click.command("sandbox")
@click.option(
    "--data",
    metavar="DIR",
    shell_complete=complete.folders,
    help="Directory of FHIR NDJSON to serve [default: the bundled made-up data].",
)
@click.option(
    "--state", metavar="DIR", shell_complete=complete.folders, help="Keep the services' state there across restarts."
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1 [default: a free one].")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of a service; repeatable.")
def sandbox(data: str | None, state: str | None, port: int, settings: tuple[str, ...]) -> int:
    """Run the sandbox services alone, until Ctrl-C. Not for production.

    Prints "configuration: PATH" when every service answers; that file is a complete configuration.
    """
    from deployments.sandbox.data import DATA
    from deployments.sandbox.host import SandboxOptions, run_sandbox

    pairs = [setting.partition("=") for setting in settings]
    wrong = [name for name, equals, _ in pairs if not equals]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} is not KEY=VALUE", param_hint="--set")
    options = SandboxOptions(
        data=Path(data) if data else DATA,
        port=port,
        state=Path(state) if state else None,
        settings={name: value for name, _, value in pairs},
    )
    return run_sandbox(options)


_where = click.option(
    "--jobs-dir",
    default=None,
    metavar="DIR",
    shell_complete=complete.folders,
    help="Jobs directory of the server [default: APP_JOBS_DIR or ./jobs].",
)


@click.group("server")
def server() -> None:
    """Start, stop or show the local Prefect server with its UI."""


@server.command()
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
    """Start the server and print the link that opens its UI. The jobs directory is that of CONFIG."""
    from flows.engine.server import background

    return background.start(background.home_of(config, jobs_dir), port)


@server.command()
@click.argument("config", required=False, shell_complete=complete.files)
@_where
def stop(config: str | None, jobs_dir: str | None) -> int:
    """Stop the server. Refused while a job runs on it."""
    from flows.engine.server import background

    return background.stop(background.home_of(config, jobs_dir))


@server.command()
@click.argument("config", required=False, shell_complete=complete.files)
@_where
def status(config: str | None, jobs_dir: str | None) -> int:
    """Show whether the server answers, and the link that opens its UI."""
    from flows.engine.server import background

    return background.status(background.home_of(config, jobs_dir))
