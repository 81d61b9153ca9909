"""Make every command that Sluice prints for a person to run, so that it runs as it is printed.

``4-product.md`` §2: with the program name and the paths that the person used, quoted for the shell. A command in a
log, on a page or in the Prefect UI has absolute paths, so it runs in any directory of the machine.
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
    """A command of this program as a shell takes it; ``anywhere`` is for those who are in another directory.

    The path of the configuration stands in it as it was given to the command that runs now.
    """
    if anywhere:
        return shlex.join([*_whole(_started_as()), *words])
    given = _written_paths()
    return shlex.join([*_short(_started_as()), *(given.get(word, word) for word in words)])


def about(verb: str, *rest: str) -> str:
    """A command like ``job list`` about the configuration that the command which runs now was given, and its ``--set``.

    Where no command runs, or one without a configuration, it is a picture of the command.
    """
    config, overrides = _parameter("config"), _parameter("overrides")
    if not isinstance(config, str):
        return " ".join([SCRIPT, verb, "CONFIG", *rest])
    sets = [part for one in overrides or () for part in ("--set", str(one))]
    return command(*verb.split(), config, *rest, *sets)


def install(extra: str) -> str:
    """The command that adds an extra to what this program runs under, with the versions that belong to it."""
    clone = Path(__file__).parents[1]
    pip, pins = [sys.executable, "-m", "pip", "install", "--quiet"], clone / "constraints.txt"
    if not pins.is_file():  # installed from a wheel
        return shlex.join([*pip, f"{SCRIPT}[{extra}]"])
    return shlex.join([*pip, "-c", str(pins), "-e", f"{clone}[{extra}]"])


def _parameter(name: str) -> Any:
    """What the command that runs now was given for an argument or option; ``None`` where it has none such."""
    context = click.get_current_context(silent=True)
    return context.params.get(name) if context is not None else None


def _written_paths() -> dict[str, str]:
    """Whole paths of configurations, and how they were written."""
    config, configs = _parameter("config"), _parameter("configs")
    written = [config, *(configs if isinstance(configs, tuple) else ())]
    return {str(Path(one).absolute()): one for one in written if isinstance(one, str)}


def _started_as() -> list[str]:
    """What stood before the arguments when this process was started: ``python -m flows.run``, or the script's path.

    A process that is no command of ours (a worker) runs under an interpreter that has the package.
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
    """A program by its name alone where the shell finds this very one under it: the shell gave its path to us."""
    name = Path(program[0]).name
    found = shutil.which(name)
    same = found is not None and Path(found).absolute() == Path(program[0]).absolute()
    return [name, *program[1:]] if same else program


def _whole(program: list[str]) -> list[str]:
    if program[-1] == MODULE:
        return [sys.executable, *program[1:]]
    return [str(Path(program[0]).absolute())]
