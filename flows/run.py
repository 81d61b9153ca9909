"""The command line: ``python -m flows.run`` and the console script ``sluice`` (``4-product.md`` §2).

The commands are imported when they are called and import what is slow inside their bodies, so that ``--help`` and the
``config`` commands answer at once.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import click

COMMANDS = {
    "pipeline": "flows.commands.pipeline:group",
    "job": "flows.commands.job:group",
    "config": "flows.commands.config:group",
    "server": "flows.commands.server:group",
    "demo": "flows.commands.demo:command",
    "sandbox": "flows.commands.sandbox:command",
    "completion": "flows.commands.completion:command",
    "version": "flows.commands.version:command",
}


class Terminated(BaseException):
    """SIGTERM outside a running flow."""


class LazyGroup(click.Group):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of the specification's table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name].split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest command as a hint."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], list(COMMANDS), n=1)
            raise click.UsageError(error.message + (f" Did you mean {near[0]!r}?" if near else ""), ctx) from None


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done or waiting, 1 failed, 2 usage or configuration, 3 failed for now, "
    "4 the job is being run by another process, 5 validation gate, 130/143 stopped by a signal.",
)
def cli() -> None:
    """Sluice moves clinical FHIR data from a hospital's store to a research project."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and end the process with its exit code."""
    os.umask(0o077)
    signal.signal(signal.SIGTERM, _terminate)
    code = run(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise Terminated


def run(argv: Sequence[str]) -> int:
    """Run a command; its exit code. Errors go to stderr as reference and message, context, hint."""
    from config import ConfigError
    from tasks.shared.errors import SluiceError

    try:
        result: Any = cli.main(list(argv), prog_name="sluice", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        _complain(f"error[usage]: {error.format_message()}")
        context = getattr(error, "ctx", None)
        if context is not None:
            _complain(f"hint: {context.command_path} --help")
        return 2
    except ConfigError as error:
        _complain(str(error))
        return error.exit_code
    except SluiceError as error:
        _complain(error.render())
        return error.exit_code
    except Terminated:
        return 143
    except (KeyboardInterrupt, click.exceptions.Abort):
        return 130
    except BrokenPipeError:
        return 0


def _complain(text: str) -> None:
    sys.stderr.write(text.rstrip("\n") + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
