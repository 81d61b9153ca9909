"""``demo``, ``sandbox`` and ``server``: programs that serve this machine only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from deployments.sandbox.child import MISSING
from flows.commands import complete
from flows.job.lock import is_held
from flows.jobs_dir import load
from flows.output import patience, print_line
from tasks.shared.errors import InputError, TerminalError

if TYPE_CHECKING:
    from flows.prefect.address import ApiAddress


@click.command("demo")
@click.option("--keep", is_flag=True, help="Keep this demo's files; without it the next demo replaces them.")
@click.option("--review", is_flag=True, help="Include a wait, at which you review the files and decide.")
def demo(keep: bool, review: bool) -> int:
    """Run a whole pipeline on this machine, on synthetic data.

    Starts sandbox services on this machine and queries their extraction server. Each step prints a summary line; the
    paths of the files are printed at the end.
    """
    with patience("loading the demo"):
        from flows import demo as whole
    return whole.run(keep=keep, reviewed=review)


@click.command("sandbox")
@click.option(
    "--data",
    metavar="DIR",
    type=complete.DIRECTORY,
    help="Directory of FHIR NDJSON to serve [default: the bundled synthetic data].",
)
@click.option("--state", metavar="DIR", type=complete.DIRECTORY, help="Keep the services' state there across restarts.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1 [default: a free one].")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of a service; repeatable.")
@click.option("--with-parent", is_flag=True, hidden=True, help="End when standard input ends.")
def sandbox(data: str | None, state: str | None, port: int, settings: tuple[str, ...], with_parent: bool) -> int:
    """Run the sandbox services alone, until Ctrl-C. Not for production.

    Prints "configuration: PATH" when every service answers; that file is a complete configuration.
    """

    try:
        from deployments.sandbox.host import SandboxOptions, run_sandbox
    except ModuleNotFoundError as error:
        raise InputError("sandbox", f"the library {error.name} is not installed", hint=MISSING) from None
    return run_sandbox(SandboxOptions(data, state, port, settings, with_parent))


optional_config = click.argument("config", required=False, type=complete.FILE)


@click.group("server")
def server() -> None:
    """Start, stop or show the local Prefect server with its UI.

    The server belongs to the jobs directory that CONFIG names; without CONFIG, to APP_JOBS_DIR or ./jobs.
    """


@server.command()
@optional_config
def start(config: str | None) -> None:
    """Start the server and print its address and password."""
    from flows.prefect import server as prefect_server

    _print_address(prefect_server.start(_jobs_dir(config)))


@server.command()
@optional_config
@click.option("--yes", is_flag=True, help="Stop it although jobs run on it.")
def stop(config: str | None, yes: bool) -> None:
    """Stop the server. While a job runs on it, --yes is needed."""
    from flows.prefect import server as prefect_server

    jobs_dir = _jobs_dir(config)
    running = [path.parent.name for path in jobs_dir.glob("*/.lock") if is_held(path.parent)]
    if running and not yes:
        raise TerminalError(
            "server-in-use", f"jobs run on the server: {', '.join(running)}", context=str(jobs_dir),
            hint="wait for them, or stop the server with --yes: continue goes on with them later",
        )  # fmt: skip
    stopped = prefect_server.stop(prefect_server.home_of(jobs_dir))
    print_line("the server is stopped" if stopped else "no server runs")


@server.command()
@optional_config
def status(config: str | None) -> int:
    """Show whether the server answers.

    Prints its address and password; the exit code is 1 if it does not run. If you have set up another Prefect API, that
    one is checked.
    """
    from flows.prefect.address import configured_api
    from flows.prefect.api import reach
    from flows.prefect.server import find, home_of

    home = home_of(_jobs_dir(config))
    if (address := configured_api()) is not None:
        reach(address)
    elif (address := find(home)) is None:
        print_line(f"no server runs for {home.parent}")
        return 1
    _print_address(address)
    return 0


def _jobs_dir(config: str | None) -> Path:
    """Return the jobs directory of a configuration, or the default one."""
    found = load(config).config.jobs_dir if config is not None else Path(os.environ.get("APP_JOBS_DIR") or "./jobs")
    return found.absolute()


def _print_address(address: ApiAddress) -> None:
    print_line(f"Prefect UI: {address.ui}\nAPI: {address.shown}")
    if address.password is not None:
        print_line(f"password, also the value of PREFECT_API_AUTH_STRING: {address.password}")
