"""``config check | show | init | schema``. Never imports Prefect."""

from __future__ import annotations

from pathlib import Path

import click

from flows.commands import complete
from flows.commands.options import config_argument, set_option
from flows.output import print_findings, print_json, print_line


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
    from flows.jobs_dir import load

    try:
        loaded = load(config, overrides)
    except ConfigError as error:
        if error.partial is None:
            raise
        findings = [*error.findings, *error.partial.unreadable()]
    else:
        findings = [*loaded.unreadable(), *loaded.warnings]
    if any(finding.level == "error" for finding in findings):
        raise ConfigError(sorted(findings, key=lambda finding: finding.level))
    print_findings(findings)
    print_line(f"{config}: valid; steps: {', '.join(loaded.config.pipeline.enabled_steps)}")
    return 0


@group.command()
@config_argument
@set_option
@click.option("--json", "as_json", is_flag=True, help="A JSON list of key, value and source.")
def show(config: str, overrides: tuple[str, ...], as_json: bool) -> int:
    """Show every effective value and the layer it came from. Secrets are masked."""
    from config import load_config

    loaded = load_config(Path(config), overrides=overrides)
    rows = loaded.effective()
    if as_json:
        print_json([{"key": row.key, "value": row.value, "source": row.source} for row in rows])
        return 0
    keys = max(len(row.key) for row in rows)
    values = min(max(len(str(row.value)) for row in rows), 48)
    for row in rows:
        print_line(f"{row.key:{keys}}  {row.value!s:{values}}  {row.source}")
    return 0


@group.command()
@click.argument("file", default="sluice.yaml", shell_complete=complete.files)
@click.option(
    "--steps",
    metavar="LIST",
    shell_complete=complete.steps,
    help="The steps, in order, between commas: extractor,pseudonymizer,send.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def init(file: str, steps: str | None, force: bool) -> int:
    """Write a commented configuration. With just what its steps need, and a variable for every secret.

    On a terminal it asks for the steps and the addresses of the services. A pipe or a file as standard input gives
    the same answers, one on each line. Without answers (</dev/null) the file has examples.
    """
    from flows.commands import init

    return init.init(file, steps, force=force)


@group.command()
@click.argument("old", shell_complete=complete.files)
@click.argument("new", required=False, shell_complete=complete.files)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def migrate(old: str, new: str | None, force: bool) -> int:
    """Rewrite a file with older names, or of aether.

    Current names replace the older ones; comments stay.

    Without NEW the text is printed. Warnings about changes you must make yourself go to stderr.
    """
    from flows.commands import migrate

    return migrate.migrate(old, new, force=force)


@group.command()
def schema() -> int:
    """Print the JSON Schema of the configuration file."""
    from config.reference import json_schema

    print_json(json_schema())
    return 0
