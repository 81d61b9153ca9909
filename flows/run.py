"""The command line: ``python -m flows.run`` and the console script ``sluice`` (docs/commands.md).

A command's module is imported when the command is called. Slow imports are in the bodies of commands, so that
``--help`` answers at once. Click handles usage errors, prompts and closed pipes; ``Root`` adds exit codes and errors.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import click

from flows import signals
from flows.output import print_line

COMMANDS = {
    "demo": "flows.commands.local:demo",
    "pipeline": "flows.commands.pipeline:group",
    "job": "flows.commands.job:group",
    "config": "flows.commands.config:group",
    "extraction": "flows.commands.extraction:group",
    "sandbox": "flows.commands.local:sandbox",
    "server": "flows.commands.local:server",
    "completion": "flows.commands.complete:completion",
}


class Root(click.Group):
    """The group of all commands. A command returns its exit code (``None`` for 0) or raises an error."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of ``COMMANDS``."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name].split(":")
        found: click.Command = getattr(importlib.import_module(module), attribute)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Call the command, print its error if it raises one, and end with its exit code."""
        try:
            code = super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
            raise
        except Exception as error:  # noqa: BLE001 - no traceback is printed: it may quote data
            code = print_error(error)
        ctx.exit(code or 0)


@click.command(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    no_args_is_help=True,
    epilog="Exit codes: 0 done or waiting, 1 failed, 2 usage or configuration, 3 failed temporarily, "
    "4 the job is being run by another process, 5 stopped by a check, 130/143 stopped by a signal.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log every request on stderr: destination, status, time.")
@click.version_option(package_name="sluice", prog_name="sluice", message="%(prog)s %(version)s")
def cli(verbose: bool) -> None:
    """Sluice moves clinical FHIR data from a hospital's store to a research project."""
    if verbose:
        from tasks.shared.http import request_log

        request_log.listener = partial(print_line, err=True)


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


def run(argv: Sequence[str]) -> int:
    """Run a command and return its exit code."""
    try:
        cli.main(list(argv), prog_name="sluice")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and end the process with its exit code."""
    os.umask(0o077)
    for stream in (sys.stdout, sys.stderr):  # a character that the terminal cannot show becomes a question mark
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    signals.install()
    code = run(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)  # else Prefect's threads would try for minutes to send logs while the API is away


if __name__ == "__main__":
    main()
