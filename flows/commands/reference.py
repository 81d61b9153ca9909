"""The reference page of the command line, ``docs/commands.md``, generated from the commands.

Run ``python -m flows.commands.reference > docs/commands.md`` after a change of a command; a test compares.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from flows.run import cli

_INTRODUCTION = """\
# Commands

<!-- Generated from the commands: python -m flows.commands.reference > docs/commands.md -->

This page lists the arguments, options and exit codes of all commands.

`sluice` and `python -m flows.run` are the same program. `--version` prints
its version and `--help`, after every command, its help. Errors go to stderr as `error[reference]: message`, the place,
and a hint; [troubleshooting](troubleshooting.md) explains every reference.

`-v` (`--verbose`), before any command, logs each request to a service or the Prefect API on stderr, with its status
or the reference of its error, the sizes of the bodies and the time, for example
`POST http://fhir:8080/fhir: 200, 81.2 kB sent, 4.1 kB back, 35 ms`. It never logs bodies, headers, passwords, values of
query parameters, or ids in paths (`http://fhir:8080/fhir/Patient/…?_count=…`). Requests of Prefect's own engine and
updates of the progress are left out.

## Exit codes

| Code | Meaning |
|---|---|
| `0` | done, or parked at a `wait`; also after `--reject` |
| `1` | a step failed for good: the same command fails again until something is mended |
| `2` | the command line, the configuration or the input cannot be used; before a start, no job exists |
| `3` | a step failed for now, or a service cannot be reached: the same command may succeed later |
| `4` | the job is being run by another process |
| `5` | a gate: validation found errors, the release report has a stop, or `--approve` decided nothing |
| `130` | stopped by Ctrl-C (SIGINT) |
| `143` | stopped by SIGTERM |

`server status` ends with 1 when no server runs.
"""

_ARGUMENTS = {
    "CONFIG…": "paths of YAML configuration files, one for each jobs directory",
    "CONFIG": "path of the YAML configuration file",
    "JOB": "job id, as `pipeline start` and `job list` print it; its first characters, where they name one job (4 or "
    "more); or `latest`",
    "[CRTDL] [INPUT]": "a CRTDL file (JSON), and a directory or an HTTP(S) URL to import; recognised by their content, "
    "so either may be left out, and their order does not matter",
    "CRTDL": "a CRTDL file (JSON)",
    "ID…": "ids of extraction jobs, as the extraction server gives them, or their first characters (4 or more)",
    "OLD": "path of a configuration file with older names",
    "NEW": "path of the file that is written; without it, the text is printed",
    "FILE": "path of the configuration that is written",
    "SHELL": "the shell to complete in",
}


def render() -> str:
    """Return the page."""
    root = click.Context(cli, info_name="sluice")
    return "\n".join([_INTRODUCTION, *_commands(cli, root)]).rstrip() + "\n"


def _commands(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None:
            raise LookupError(name)
        below = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _commands(command, below)
        else:
            yield from _command(command, below)


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"## {context.command_path.partition(' ')[2]}\n"
    yield f"```\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    for paragraph in (command.help or "").split("\n\n"):
        yield " ".join(paragraph.split()) + "\n"
    rows = [row for parameter in command.get_params(context) if (row := _row(parameter, context))]
    if rows:
        yield "| Argument or option | Meaning |\n|---|---|"
        yield from rows
        yield ""


def _row(parameter: click.Parameter, context: click.Context) -> str | None:
    if isinstance(parameter, click.Argument):
        name, optional = parameter.make_metavar(context), ""
        if isinstance(parameter.type, click.Choice):
            name = (parameter.name or "").upper()
            optional = ": " + ", ".join(f"`{choice}`" for choice in parameter.type.choices)
        elif name not in _ARGUMENTS:  # click puts an optional argument in brackets
            name, optional = name.strip("[]"), " (optional)"
        return f"| `{name}` | {_ARGUMENTS[name]}{optional} |"
    record = parameter.get_help_record(context)
    if record is None or "--help" in parameter.opts:
        return None
    flags, text = record
    return f"| `{flags}` | {text.replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    sys.stdout.write(render())
