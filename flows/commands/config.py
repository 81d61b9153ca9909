"""``config check | show | schema``. Never imports Prefect."""

from __future__ import annotations

from pathlib import Path

import click


@click.group("config")
def group() -> None:
    """Check a configuration, show its effective values, print the JSON Schema."""


_set = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a configuration key; repeatable."
)


@group.command()
@click.argument("config")
@_set
def check(config: str, overrides: tuple[str, ...]) -> int:
    """Report all findings of a configuration at once."""
    from config import load_config

    loaded = load_config(Path(config), overrides=overrides)
    for warning in loaded.warnings:
        click.echo(warning.render(), err=True)
    steps = ", ".join(str(name) for name in loaded.config.pipeline.enabled_steps)
    click.echo(f"{config}: valid; steps: {steps}")
    return 0


@group.command()
@click.argument("config")
@_set
@click.option("--json", "as_json", is_flag=True, help="A JSON list of key, value and source.")
def show(config: str, overrides: tuple[str, ...], as_json: bool) -> int:
    """Show every effective value and the layer it came from. Secrets are masked."""
    from config import load_config

    loaded = load_config(Path(config), overrides=overrides)
    rows = loaded.effective()
    if as_json:
        import json

        document = [{"key": row.key, "value": row.value, "source": row.source} for row in rows]
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return 0
    keys = max(len(row.key) for row in rows)
    values = min(max(len(str(row.value)) for row in rows), 48)
    for row in rows:
        click.echo(f"{row.key:{keys}}  {row.value!s:{values}}  {row.source}")
    return 0


@group.command()
def schema() -> int:
    """Print the JSON Schema of the configuration file."""
    import json

    from config import json_schema

    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
    return 0
