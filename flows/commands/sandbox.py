"""``sandbox``."""

from __future__ import annotations

from pathlib import Path

import click

from flows.commands import complete
from flows.output import patience


@click.command("sandbox")
@click.option(
    "--data",
    metavar="DIR",
    shell_complete=complete.folders,
    help="Directory of FHIR NDJSON to serve [default: the bundled made-up data].",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of the first service on 127.0.0.1; 0: free ports.",
)
@click.option(
    "--state", metavar="DIR", shell_complete=complete.folders, help="Keep the services' state there over restarts."
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of a service; repeatable.")
def command(data: str | None, port: int, state: str | None, settings: tuple[str, ...]) -> int:
    """Run the sandbox services alone, until Ctrl-C.

    Prints "configuration: PATH" when every service answers; that file is a complete configuration. Not for production.
    """
    with patience("loading the sandbox services"):
        from deployments.sandbox.data import DATA
        from deployments.sandbox.host import SandboxOptions, run_sandbox

    pairs = [setting.partition("=") for setting in settings]
    wrong = [name for name, equals, _ in pairs if not equals]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} is not KEY=VALUE", param_hint="--set")
    options = SandboxOptions(
        data=Path(data) if data else DATA,
        port=port,
        state=Path(state) if state else None,
        settings={name: value for name, _, value in pairs},
    )
    return run_sandbox(options)
