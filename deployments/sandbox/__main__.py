"""``python -m deployments.sandbox``: what ``sluice sandbox`` does, or the sandbox as a child of another program."""

from __future__ import annotations

import sys

import click

from deployments.sandbox.child import ERROR, MISSING


@click.command()
@click.option("--data", metavar="DIR", help="Directory of FHIR NDJSON to serve [default: the bundled synthetic data].")
@click.option("--state", metavar="DIR", help="Keep the services' state there across restarts.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1 [default: a free one].")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of a service; repeatable.")
@click.option("--with-parent", is_flag=True, help="End when standard input ends.")
def main(data: str | None, state: str | None, port: int, settings: tuple[str, ...], with_parent: bool) -> None:
    """Run the sandbox services until Ctrl-C. For trials and tests, not for production."""
    try:
        from deployments.sandbox.host import SandboxOptions, run_sandbox
    except ModuleNotFoundError as error:
        sys.exit(f"{ERROR}the library {error.name} is not installed; {MISSING}")
    sys.exit(run_sandbox(SandboxOptions(data, state, port, settings, with_parent)))


if __name__ == "__main__":
    main()
