"""Shell completion of the word at the cursor (``4-product.md`` §2), and the command ``completion``.

Completion must be fast: no Prefect, no server, no complete configuration. So ids come from the directory names in the
jobs directory. If something cannot be found, nothing is offered; there are no errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from flows.job.which import LATEST, directories

Items = list[CompletionItem[str]]

VARIABLE: Final = "_SLUICE_COMPLETE"
MOST: Final = 200
"""Ids that are offered: more is nothing to choose from."""
LARGEST: Final = 256 * 1024
"""Bytes of a configuration that are looked at."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print the completion script for a shell. Commands, options, job ids, steps, files.

    For example: eval "$(sluice completion bash)"
    """
    from flows.output import write

    write(script(shell))
    return 0


def script(shell: str) -> str:
    """Return click's script for ``bash``, ``zsh`` or ``fish``; it calls this program, also outside of the PATH."""
    from flows.run import cli
    from flows.shell import SCRIPT
    from flows.shell import command as called

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}")
    text = found(cli, {}, SCRIPT, VARIABLE).source()
    if shell == "bash":  # it calls $1, the program as it was typed
        return text
    text = text.replace(f"    (( ! $+commands[{SCRIPT}] )) && return 1\n", "")
    return re.sub(rf"(zsh_complete|\(commandline -t\)) {SCRIPT}(?=[);])", rf"\1 {called(anywhere=True)}", text)


def files(_: click.Context, __: click.Parameter, incomplete: str) -> Items:
    """Return the marker by which the shell completes files and directories."""
    return [CompletionItem(incomplete, type="file")]


def folders(_: click.Context, __: click.Parameter, incomplete: str) -> Items:
    """Return the marker by which the shell completes directories."""
    return [CompletionItem(incomplete, type="dir")]


def jobs(context: click.Context, _: click.Parameter, incomplete: str) -> Items:
    """Return ``latest`` and the ids of jobs with a directory, last used first."""
    try:
        found = sorted(((path.stat().st_mtime, path.name) for path in directories(jobs_dir(context))), reverse=True)
    except OSError:
        found = []
    return _beginning([LATEST, *(name for _, name in found[:MOST])], incomplete)


def steps(_: click.Context, __: click.Parameter, incomplete: str) -> Items:
    """Return the names of steps; in a list with commas, for the last one."""
    from config import STEPS

    before, comma, last = incomplete.rpartition(",")
    return _beginning((f"{before}{comma}{name}" for name in STEPS), f"{before}{comma}{last}")


def jobs_dir(context: click.Context) -> Path:
    """Return the jobs directory without a full check: ``--set``, environment, file, default."""
    given = [str(one).partition("=") for one in context.params.get("overrides") or ()]
    name = next((value for key, _, value in reversed(given) if key == "jobs_dir"), "") or os.environ.get("APP_JOBS_DIR")
    if not name:
        text = _text_of(str(context.params.get("config")))
        found = re.search(r"(?m)^jobs_dir:[ \t]*(\"[^\"\n]*\"|'[^'\n]*'|[^\s#][^\n]*?)[ \t]*(?:[ \t]#[^\n]*)?$", text)
        name = found[1].strip("\"'") if found else "jobs"
    return Path(re.sub(r"\$\{(\w+)\}", lambda variable: os.environ.get(variable[1], ""), name))


def _beginning(values: Iterable[str], incomplete: str) -> Items:
    return [CompletionItem(value) for value in values if value.startswith(incomplete)]


def _text_of(file: str) -> str:
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:  # noqa: PTH123 - a word of the command line
            return opened.read(LARGEST)
    except (OSError, ValueError):
        return ""
