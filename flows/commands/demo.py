"""``demo``."""

from __future__ import annotations

import click

from flows.output import patience


@click.command("demo")
@click.option("--keep", is_flag=True, help="Keep this demo's files; without it the next demo replaces them.")
@click.option("--review", is_flag=True, help="Include a wait, where you look at the files and are asked.")
@click.option(
    "--send",
    type=click.Choice(("direct", "transfer", "s3")),
    default="direct",
    show_default=True,
    help="What to send to: the sandbox FHIR server, one zip for a transfer, or an object store (extra objectstore).",
)
def command(keep: bool, review: bool, send: str) -> int:
    """Run a whole pipeline on this machine, on made-up data.

    It runs against sandbox services on loopback, and begins with a query to their extraction server. Prints each step's
    summary line and where the files are.
    """
    with patience("loading the demo"):
        from flows import demo

    return demo.run(keep=keep, review=review, send=send)
