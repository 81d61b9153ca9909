"""``completion``."""

from __future__ import annotations

import click

VARIABLE = "_SLUICE_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print the completion script for a shell. Commands, options, job ids, steps, keys behind --set, files.

    For example: eval "$(sluice completion bash)"
    """
    from flows.output import write

    write(script(shell))
    return 0


def script(shell: str) -> str:
    """The script of click for this shell; it asks the program that wrote it, which need not be on the PATH.

    Raises:
        click.UsageError: the library has none.
    """
    from click.shell_completion import get_completion_class

    from flows.run import cli
    from flows.shell import SCRIPT, command

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}")
    text = found(cli, {}, SCRIPT, VARIABLE).source()
    if shell == "bash":  # as it was called: $1. Behind a key comes its value, no blank
        return text.replace(
            "COMPREPLY+=($value)", 'COMPREPLY+=($value)\n            [[ $value == *= ]] && compopt -o nospace'
        )  # fmt: skip
    program = command(anywhere=True)
    text = text.replace(f"    (( ! $+commands[{SCRIPT}] )) && return 1\n", "")
    return text.replace(f"{VARIABLE}=zsh_complete {SCRIPT})", f"{VARIABLE}=zsh_complete {program})").replace(
        f"(commandline -t) {SCRIPT});", f"(commandline -t) {program});"
    )
