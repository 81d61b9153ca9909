"""The commands that Sluice prints are quoted for a shell and run by this installation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from flows import shell
from tests.conftest import ROOT

CODE = "from flows.shell import command; print(command('config', 'check', 'my config.yaml'))"


@pytest.mark.parametrize("is_on_the_path", [True, False])
def test_a_command_is_quoted_and_named_as_this_shell_finds_it(tmp_path: Path, is_on_the_path: bool) -> None:
    if is_on_the_path:
        (tmp_path / "sluice").touch(0o755)
    script = Path(sys.executable).with_name("sluice")
    elsewhere = str(script) if script.is_file() else f"{sys.executable} -m flows.run"
    environment = os.environ | {"PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == f"{'sluice' if is_on_the_path else elsewhere} config check 'my config.yaml'\n", done.stderr


def test_about_has_the_configuration_and_overrides_of_the_current_command() -> None:
    said = []

    @click.command()
    @click.argument("config")
    @click.option("--set", "overrides", multiple=True)
    def list_(config: str, overrides: tuple[str, ...]) -> None:
        said.append(shell.about("job list", "y"))

    list_.main(["../my dir/c.yaml", "--set", "jobs_dir=my jobs"], standalone_mode=False)
    program = shell.command()
    assert said == [f"{program} job list '../my dir/c.yaml' y --set 'jobs_dir=my jobs'"]
    assert shell.about("job list", "y") == f"{program} job list CONFIG y"
