"""``version`` and ``--version``."""

from __future__ import annotations

import click

from flows.output import say


@click.command("version")
def command() -> int:
    """Print the versions of Sluice, Python and Prefect."""
    tell()
    return 0


def tell() -> None:
    """One line with the versions."""
    import platform
    from importlib.metadata import version

    say(f"sluice {version('sluice')} (Python {platform.python_version()}, Prefect {version('prefect')})")
