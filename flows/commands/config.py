"""``config check | show | schema | init``. Never imports Prefect."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import click

from flows.commands import complete
from flows.commands.options import config_argument, set_option
from flows.jobs_dir import load
from flows.output import print_findings, print_json, print_line
from flows.shell import command
from tasks.shared.errors import InputError
from tasks.shared.files.part_file import write_whole
from tasks.shared.units import human_count

_HEADING = """\
# A configuration of Sluice. A line that begins with "#" and a letter right after it is a key that is switched off:
# remove the "#" to set it. Each key has an environment variable, too: APP_ and its path in capitals."""


@click.group("config")
def group() -> None:
    """Write, check or show a configuration; print its JSON Schema."""


@group.command()
@config_argument
@set_option
def check(config: str, overrides: tuple[str, ...]) -> None:
    """Report all findings of a configuration.

    The files and directories that it names are checked, too. No service is asked.
    """
    from config import ConfigError
    from flows.job.preflight import file_findings
    from tasks.shared.step import GivenInputs

    loaded = load(config, overrides)
    findings = [*loaded.warnings, *file_findings(loaded.config, GivenInputs())]
    if any(finding.level == "error" for finding in findings):
        raise ConfigError(findings)
    print_findings(findings)
    passed = human_count(len(findings), "warning") if findings else "All checks passed"
    print_line(f"{passed}. Steps: {', '.join(loaded.config.pipeline.enabled_steps)}")


@group.command()
@config_argument
@set_option
def show(config: str, overrides: tuple[str, ...]) -> None:
    """Show every effective value and the source it came from. Secrets are masked."""
    from config import load_config

    rows = list(load_config(config, overrides=overrides).effective())
    keys = max(len(key) for key, _, _ in rows)
    values = min(max(len(value) for _, value, _ in rows), 48)
    for key, value, source in rows:
        print_line(f"{key:{keys}}  {value:{values}}  {source}")


@group.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file."""
    from config.docs import json_schema

    print_json(json_schema())


@group.command()
@click.argument("file", default="sluice.yaml", type=complete.FILE)
@click.option("--steps", metavar="LIST", default="local_import,wait,send", show_default=True, help="Steps, in order.")
def init(file: str, steps: str) -> None:
    """Write a commented configuration.

    It has just what its steps need, and a variable for every secret. Nothing is overwritten.
    """
    import config

    path, names = Path(file), steps.replace(",", " ").split()
    if path.exists() or path.is_symlink():
        raise InputError("config-exists", "this file exists already", context=file, hint="give another name")
    if not path.absolute().parent.is_dir():
        raise InputError("file-not-found", "there is no such directory", context=str(path.parent))
    example = Path(config.__file__).with_name("example.yaml")
    text = example.read_text(encoding="utf-8")
    overrides = [f"pipeline.enabled_steps={','.join(names)}"]
    config.load_config(example, overrides=overrides, environ=dict.fromkeys(_variables(text), "x"))
    text = _reduced(text, names)
    write_whole(path.absolute(), text.encode())
    print_line(f"{file} is written: {', '.join(names)}")
    if missing := [name for name in _variables(text) if name not in os.environ]:
        print_line(f"set these variables: {', '.join(missing)}")
    print_line(f"put in your own addresses, then: {command('config', 'check', file)}")


def _reduced(example: str, steps: Sequence[str]) -> str:
    """Return the example with the blocks of these steps only."""
    wanted = {"services", "pipeline", "jobs_dir", *steps} | ({"report"} if "send" in steps else set())
    if {"extractor", "flattening"} & set(steps):
        wanted.add("crtdl_preprocessing")
    _, *blocks = example.split("\n\n")
    kept = [block for block in blocks if (name := re.search(r"(?m)^ *#?(\w+):", block)) and name[1] in wanted]
    text = "\n\n".join([_HEADING, *kept])
    return re.sub(r"(?<=enabled_steps: )\[.*\]", f"[{', '.join(steps)}]", text)


def _variables(text: str) -> list[str]:
    """Return the variables on lines that are not switched off, in order."""
    lines = [line.partition("#")[0] for line in text.splitlines()]
    return list(dict.fromkeys(re.findall(r"\$\{(\w+)\}", "\n".join(lines))))
