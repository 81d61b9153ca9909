"""The command line: ``python -m flows.run`` and the console script ``sluice`` (``4-product.md`` §2).

The commands are imported when they are called and import what is slow inside their bodies, so that ``--help`` and the
``config`` commands answer at once.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import click

from flows.output import patience, prepare_streams, print_line, print_without_waiting
from flows.shell import command
from flows.signals import Interrupted, exit_code_of, ignore, signals

COMMANDS = {
    "pipeline": "flows.commands.pipeline:group",
    "job": "flows.commands.job:group",
    "config": "flows.commands.config:group",
    "extraction": "flows.commands.extraction:group",
    "server": "flows.commands.local:server",
    "demo": "flows.commands.local:demo",
    "sandbox": "flows.commands.local:sandbox",
    "completion": "flows.commands.complete:command",
}


AWAY = 3
"""The exit code of what failed for now, an API that is away for too long among it."""


class LazyGroup(click.Group):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of the specification's table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name].split(":")
        found: click.Command = getattr(importlib.import_module(module), attribute)
        return found


def _versions(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        import platform
        from importlib.metadata import version

        print_line(f"sluice {version('sluice')} (Python {platform.python_version()}, Prefect {version('prefect')})")
        context.exit()


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    invoke_without_command=True,
    epilog="Exit codes: 0 done or waiting, 1 failed, 2 usage or configuration, 3 failed for now, "
    "4 the job is being run by another process, 5 a gate, 130/143 stopped by a signal.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log every request on stderr: destination, status, sizes, time.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_versions, help="Print versions, and exit."
)
@click.pass_context
def cli(context: click.Context, verbose: bool) -> None:
    """Sluice moves clinical FHIR data from a hospital's store to a research project."""
    if verbose:
        from tasks.shared.http import request_log

        request_log.listen(partial(print_line, err=True))
    if context.invoked_subcommand is None:
        print_line(context.get_help())


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and end the process with its exit code."""
    os.umask(0o077)
    prepare_streams()
    signals.install(print_without_waiting)
    atexit.register(ignore)  # the first, so the last to be called
    try:
        waits = sys.stderr is not None and sys.stderr.isatty()
        with patience("loading Sluice", first=True) if waits else nullcontext():
            code = run(sys.argv[1:] if argv is None else argv)
    except BaseException:
        # A signal may surface as whatever it interrupted.
        if signals.seen is None:
            raise
        code = exit_code_of(signals.seen)
    signals.fix_exit_code(code)
    if code == AWAY:
        from flows.engine.outage import given_up

        if given_up():  # Prefect's threads would try for minutes to send the rest of their lines
            os._exit(code)
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """Run a command and return its exit code. Errors go to stderr as reference and message, context, hint."""
    try:
        result: Any = cli.main(list(argv), prog_name="sluice", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except (Interrupted, KeyboardInterrupt):
        return exit_code_of(signals.seen)
    except click.exceptions.Abort:
        print_line("\nno answer was given", err=True)  # Ctrl-D
        return exit_code_of(signals.seen)
    except click.ClickException as error:
        print_line(f"error[usage]: {error.format_message()}", err=True)
        context = getattr(error, "ctx", None)
        if context is not None:
            print_line(f"hint: {command(*context.command_path.split()[1:], '--help')}", err=True)
        return 2
    except Exception as error:  # noqa: BLE001 - the last seam: no traceback, which may quote data
        if signals.seen is not None:
            return exit_code_of(signals.seen)
        return print_error(error)


def print_error(error: Exception) -> int:
    """Print an error in the common form and return its exit code."""
    from config import ConfigError
    from tasks.shared.errors import SluiceError, internal_error

    if isinstance(error, ConfigError):
        print_line(str(error), err=True)
        return error.exit_code
    problem = error if isinstance(error, SluiceError) else internal_error(error)
    print_line(problem.render(), err=True)
    return problem.exit_code


if __name__ == "__main__":
    main()
