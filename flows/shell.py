"""Build the commands that Sluice prints: quoted for a shell, with the path of this installation if needed."""

from __future__ import annotations

import shlex
import shutil
import sys
from functools import cache
from pathlib import Path

import click


def command(*words: str) -> str:
    """Return a command of Sluice, quoted for a shell."""
    return shlex.join([*_program(), *words])


def about(verb: str, *rest: str) -> str:
    """Return a command like ``job list`` with the configuration and the ``--set`` options of the current command."""
    context = click.get_current_context(silent=True)
    given = context.params if context is not None else {}
    overrides = [part for one in given.get("overrides") or () for part in ("--set", str(one))]
    return command(*verb.split(), str(given.get("config") or "CONFIG"), *rest, *overrides)


def for_server(verb: str, jobs_dir: Path) -> str:
    """Return a command about the local Prefect server of a jobs directory."""
    return f"APP_JOBS_DIR={shlex.quote(str(jobs_dir))} {command('server', verb)}"


@cache
def _program() -> tuple[str, ...]:
    """Return ``sluice`` if it is on ``PATH``, else the path of the script, else ``python -m flows.run``."""
    script = Path(sys.executable).with_name("sluice")
    if shutil.which("sluice") or script.is_file():
        return ("sluice" if shutil.which("sluice") else str(script),)
    return sys.executable, "-m", "flows.run"
