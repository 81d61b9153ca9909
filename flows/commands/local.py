"""``demo``, ``sandbox`` and ``server``: programs that serve this machine only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flows.commands import complete
from flows.output import print_line

if TYPE_CHECKING:
    from flows.prefect.address import ApiAddress


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
    "--port", type=click.IntRange(0, 65535), help="Port on 127.0.0.1; 0: a free one [default: the last, 4200]."
)
def start(config: str | None, jobs_dir: str | None, port: int | None) -> int:
    """Start the server and print its address and password. The jobs directory is that of CONFIG."""
    from flows.prefect.server import start

    address, starts = start(_jobs_dir(config, jobs_dir), port)
    if not starts:
        print_line("the server runs already")
    _print_address(address)
    return 0


@server.command()
@click.argument("config", required=False, shell_complete=complete.files)
@_where
@click.option("--yes", is_flag=True, help="Stop it although jobs run on it.")
def stop(config: str | None, jobs_dir: str | None, yes: bool) -> int:
    """Stop the server. While a job runs on it, --yes is needed."""
    from flows.prefect.server import home_of, stop

    home = home_of(_jobs_dir(config, jobs_dir))
    if not yes:
        _refuse_while_in_use(home)
    print_line("the server is stopped" if stop(home) else "no server runs")
    return 0


@server.command()
@click.argument("config", required=False, shell_complete=complete.files)
@_where
def status(config: str | None, jobs_dir: str | None) -> int:
    """Show whether the server answers, with its address and password; exit code 1 if it does not run.

    If you have set up another Prefect API, that one is checked.
    """
    from flows.prefect.address import configured_api, reach
    from flows.prefect.server import find, home_of

    address = configured_api()
    if address is not None:
        reach(address)
        print_line(f"Prefect UI: {address.ui}\nAPI: {address.shown}")
        return 0
    home = home_of(_jobs_dir(config, jobs_dir))
    address = find(home)
    if address is None:
        print_line(f"no server runs for {home.parent}")
        return 1
    _print_address(address)
    return 0


def _jobs_dir(config: str | None, jobs_dir: str | None) -> Path:
    """Return the jobs directory of a configuration, or ``jobs_dir``, or the default one."""
    from flows.jobs_dir import load

    if config is not None:
        return load(config).config.jobs_dir.absolute()
    return Path(jobs_dir or os.environ.get("APP_JOBS_DIR") or "./jobs").absolute()


def _print_address(address: ApiAddress) -> None:
    home = address.home or Path()
    print_line(
        f"Prefect UI: {address.ui}\nAPI: {address.url} (jobs directory {home.parent})\n"
        f"password, for PREFECT_API_AUTH_STRING too: {address.password}"
    )


def _refuse_while_in_use(home: Path) -> None:
    """Check that no job runs on the server.

    Raises:
        TerminalError: ``server-in-use``, with the jobs.
    """
    from flows.engine.api import PrefectApi
    from flows.job.lock import is_held
    from flows.prefect.server import find
    from tasks.shared.errors import TerminalError

    address = find(home)
    if address is None:
        return
    with PrefectApi(address, told=True) as api:
        busy = [str(run["id"]) for run in api.runs(states=("RUNNING", "CANCELLING"))]
    held = [run for run in busy if is_held(home.parent / run)]
    if held:
        raise TerminalError(
            "server-in-use", f"jobs run on the server: {', '.join(held)}", context=address.ui,
            hint="wait for them, or stop the server with --yes: continue goes on with them later",
        )  # fmt: skip
