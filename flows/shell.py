"""Build every command that Sluice prints, so that it runs exactly as printed.

``4-product.md`` §2: with the program name and the paths that the person used, quoted for the shell. A command in a log,
on a page or in the Prefect UI has absolute paths, so it runs in any directory of the machine.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import click

MODULE = "flows.run"
SCRIPT = "sluice"


def command(*words: str, anywhere: bool = False) -> str:
    """Return a command of this program for a shell; with ``anywhere`` it runs in any directory.

    The path of the configuration is written as it was given to the current command.
    """
    if anywhere:
        return shlex.join([*_whole(_started_as()), *words])
    given = _written_paths()
    return shlex.join([*_short(_started_as()), *(given.get(word, word) for word in words)])


def about(verb: str, *rest: str) -> str:
    """Return a command like ``job list`` with the configuration and ``--set`` options of the current command.

    Outside of a command, or without a configuration, placeholders are used.
    """
    config, overrides = _parameter("config"), _parameter("overrides")
    if not isinstance(config, str):
        return " ".join([SCRIPT, verb, "CONFIG", *rest])
    sets = [part for one in overrides or () for part in ("--set", str(one))]
    return command(*verb.split(), config, *rest, *sets)


def _parameter(name: str) -> Any:
    """Return the value of an argument or option of the current command; ``None`` if it has none of that name."""
    context = click.get_current_context(silent=True)
    return context.params.get(name) if context is not None else None


def _written_paths() -> dict[str, str]:
    """Return the absolute paths of configurations, each with the path as it was typed."""
    config, configs = _parameter("config"), _parameter("configs")
    written = [config, *(configs if isinstance(configs, tuple) else ())]
    return {str(Path(one).absolute()): one for one in written if isinstance(one, str)}


def _started_as() -> list[str]:
    """Return the program of this process: ``python -m flows.run``, or the path of the script.

    For a process that is not one of our commands (a worker), ``-m`` with its interpreter.
    """
    arguments = sys.argv[1:]
    before = sys.orig_argv[: len(sys.orig_argv) - len(arguments)]
    if sys.orig_argv[len(before) :] == arguments:
        if before[-2:] == ["-m", MODULE]:
            return before
        if len(before) > 1 and before[-1] == sys.argv[0] and Path(before[-1]).name == SCRIPT:
            return before[-1:]
    return [sys.executable, "-m", MODULE]


def _short(program: list[str]) -> list[str]:
    """Return a program by its name alone if the shell finds this program under it."""
    name = Path(program[0]).name
    found = shutil.which(name)
    same = found is not None and Path(found).absolute() == Path(program[0]).absolute()
    return [name, *program[1:]] if same else program


def _whole(program: list[str]) -> list[str]:
    if program[-1] == MODULE:
        return [sys.executable, *program[1:]]
    return [str(Path(program[0]).absolute())]
