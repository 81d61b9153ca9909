"""Shell completion: commands, options, files and job ids (docs/commands.md), and the command ``completion``.

Completion must be fast. It loads neither Prefect nor the configuration, and asks no server. It takes ids from the
names of job directories, and offers none if it does not find the jobs directory.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

Items = list[CompletionItem]


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    It completes commands, options, files and job ids. For example: eval "$(sluice completion bash)"
    """
    kind = get_completion_class(shell)
    if kind is not None:
        click.echo(kind(context.find_root().command, {}, "sluice", "_SLUICE_COMPLETE").source())


FILE = click.Path(readable=False)
DIRECTORY = click.Path(file_okay=False, readable=False)
"""Types for completion only: the command itself reports what is wrong with a file."""


def jobs(context: click.Context, _: click.Parameter, incomplete: str) -> Items:
    """Return ``latest`` and the ids of jobs with a directory, last used first."""
    try:
        found = sorted(_jobs_dir(context).glob("*-*-*-*-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        found = []
    return [CompletionItem(name) for name in ("latest", *(path.name for path in found)) if name.startswith(incomplete)]


def _jobs_dir(context: click.Context) -> Path:
    """Return the jobs directory from ``APP_JOBS_DIR``, else from the text of the configuration file."""
    if name := os.environ.get("APP_JOBS_DIR"):
        return Path(name)
    text = Path(str(context.params.get("config"))).read_text(encoding="utf-8", errors="replace")
    found = re.search(r"(?m)^jobs_dir:[ \t]*[\"']?([^\"'\s#][^\"'\n#]*)", text)
    return Path(os.path.expandvars(found[1].strip() if found else "jobs"))
