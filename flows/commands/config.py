"""``config check | show | init | schema``. Never imports Prefect."""

from __future__ import annotations

import click

from flows.commands import complete
from flows.commands.options import config_argument, set_option
from flows.output import print_findings, print_json, print_line
from tasks.shared.units import human_count


@click.group("config")
def group() -> None:
    """Write, check or show a configuration; print its JSON Schema."""


@group.command()
@config_argument
@set_option
def check(config: str, overrides: tuple[str, ...]) -> int:
    """Report all findings of a configuration at once.

    This includes the files and directories that it names.
    """
    from config import ConfigError
    from flows.job.preflight import file_findings
    from flows.jobs_dir import load
    from tasks.shared.step import GivenInputs

    loaded = load(config, overrides)
    findings = [*loaded.warnings, *file_findings(loaded.config, GivenInputs())]
    if any(finding.level == "error" for finding in findings):
        raise ConfigError(findings)
    print_findings(findings)
    passed = human_count(len(findings), "warning") if findings else "All checks passed"
    print_line(f"{passed}. Steps: {', '.join(loaded.config.pipeline.enabled_steps)}")
    return 0


@group.command()
@config_argument
@set_option
@click.option("--json", "as_json", is_flag=True, help="A JSON list of key, value and source.")
def show(config: str, overrides: tuple[str, ...], as_json: bool) -> int:
    """Show every effective value and the layer it came from. Secrets are masked."""
    from config import load_config

    rows = list(load_config(config, overrides=overrides).effective())
    if as_json:
        print_json([{"key": key, "value": value, "source": source} for key, value, source in rows])
        return 0
    keys = max(len(key) for key, _, _ in rows)
    values = min(max(len(value) for _, value, _ in rows), 48)
    for key, value, source in rows:
        print_line(f"{key:{keys}}  {value:{values}}  {source}")
    return 0


@group.command()
@click.argument("file", default="sluice.yaml", shell_complete=complete.files)
@click.option(
    "--steps",
    metavar="LIST",
    default="local_import,wait,send",
    show_default=True,
    shell_complete=complete.steps,
    help="The steps, in order, between commas.",
)
def init(file: str, steps: str) -> int:
    """Write a commented configuration. With just what its steps need, and a variable for every secret."""
    from flows.commands import init

    return init.init(file, steps)


@group.command()
def schema() -> int:
    """Print the JSON Schema of the configuration file."""
    from config.docs import json_schema

    print_json(json_schema())
    return 0
