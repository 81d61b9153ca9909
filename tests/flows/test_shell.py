"""The commands that Sluice prints are quoted for a shell and run by this installation."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
import pytest

from flows import shell


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(shell.shutil, "which", lambda _: "/usr/bin/sluice")
    shell._program.cache_clear()
    yield
    shell._program.cache_clear()


def test_a_command_is_quoted_and_named_by_its_module_where_it_is_not_on_the_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert shell.command("config", "check", "my config.yaml") == "sluice config check 'my config.yaml'"
    shell._program.cache_clear()
    monkeypatch.setattr(shell.shutil, "which", lambda _: None)
    monkeypatch.setattr(shell.Path, "is_file", lambda _: False)
    assert shell.command("job", "list") == f"{sys.executable} -m flows.run job list"


def test_about_has_the_configuration_and_overrides_of_the_current_command() -> None:
    said = []

    @click.command()
    @click.argument("config")
    @click.option("--set", "overrides", multiple=True)
    def list_(config: str, overrides: tuple[str, ...]) -> None:
        said.append(shell.about("job list", "y"))

    list_.main(["../my dir/c.yaml", "--set", "jobs_dir=my jobs"], standalone_mode=False)
    assert said == ["sluice job list '../my dir/c.yaml' y --set 'jobs_dir=my jobs'"]
    assert shell.about("job list", "y") == "sluice job list CONFIG y"
