"""``completion``."""

from __future__ import annotations

import click


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print the completion script for a shell.

    For example: eval "$(sluice completion bash)"
    """
    from click.shell_completion import get_completion_class

    from flows.run import cli

    completion = get_completion_class(shell)
    if completion is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(completion(cli, {}, "sluice", "_SLUICE_COMPLETE").source())
    return 0
