"""``version``, and the output of a call without a command: the first steps."""

from __future__ import annotations

import click

from flows.output import print_line
from flows.shell import command

FIRST = (
    ("a whole pipeline on this machine, on made-up data", ("demo",)),
    ("write your own configuration: asks, then writes sluice.yaml", ("config", "init")),
    ("find all errors in it", ("config", "check", "sluice.yaml")),
    ("check everything a job would use, without starting it", ("pipeline", "plan", "sluice.yaml")),
    ("a job", ("pipeline", "start", "sluice.yaml")),
    ("show the state of the last job", ("pipeline", "status", "sluice.yaml", "latest")),
    ("all commands", ("--help",)),
)
"""What a person may want first, and the command for it."""


def begin() -> None:
    """Print a few commands in the order in which a new user needs them."""
    lines = [(command(*words), what) for what, words in FIRST]
    width = max(len(line) for line, _ in lines)
    shown = "\n".join(f"  {line:{width}}  {what}" for line, what in lines)
    print_line(
        f"Sluice moves clinical FHIR data from a hospital's store to a research project.\n\nBegin with:\n\n{shown}"
    )


@click.command("version")
def version() -> int:
    """Print the versions of Sluice, Python and Prefect."""
    print_versions()
    return 0


def print_versions() -> None:
    """Print one line with the versions."""
    import platform
    from importlib.metadata import version as version_of

    print_line(f"sluice {version_of('sluice')} (Python {platform.python_version()}, Prefect {version_of('prefect')})")
