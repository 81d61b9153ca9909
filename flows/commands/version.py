"""``version``."""

from __future__ import annotations

import click


@click.command("version")
def command() -> int:
    """Print the versions of Sluice, Python and Prefect."""
    import platform
    from importlib.metadata import version

    click.echo(f"sluice {version('sluice')} (Python {platform.python_version()}, Prefect {version('prefect')})")
    return 0
