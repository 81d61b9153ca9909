"""Commands that are printed are in the words that this one was started with (4-product.md §2)."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from flows import shell


def started(monkeypatch: pytest.MonkeyPatch, *words: str, script: bool = False) -> None:
    """As if this process had been started so; a script is run by the interpreter in its first line."""
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, *words] if script else list(words))
    first = 1 if script else 3
    monkeypatch.setattr(sys, "argv", [words[0] if script else "/…/flows/run.py", *words[first:]])


@pytest.mark.parametrize(
    ("words", "script", "printed"),
    [
        (["python", "-m", "flows.run", "job", "list"], False, "python -m flows.run"),
        ([".venv/bin/python", "-m", "flows.run"], False, ".venv/bin/python -m flows.run"),
        (["my env/bin/python3", "-m", "flows.run", "demo"], False, "'my env/bin/python3' -m flows.run"),
        ([".venv/bin/sluice", "job", "list", "c.yaml"], True, ".venv/bin/sluice"),
        (["/opt/my venv/bin/sluice"], True, "'/opt/my venv/bin/sluice'"),
    ],
)
def test_the_program_is_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch, words: list[str], script: bool, printed: str
) -> None:
    started(monkeypatch, *words, script=script)
    assert shell.command("job", "list", "a b.yaml") == f"{printed} job list 'a b.yaml'"


def test_a_script_that_the_shell_finds_by_its_name_is_printed_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "sluice"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    started(monkeypatch, str(script), "demo", script=True)
    assert shell.command("demo") == f"{script} demo"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shell.command("demo") == "sluice demo"
    assert shell.command("demo", anywhere=True) == f"{script} demo"


@pytest.mark.parametrize("words", [["prefect", "worker", "start"], ["python", "-m", "deployments.worker", "x"]])
def test_what_is_no_command_of_ours_names_the_interpreter_that_has_the_package(
    monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    started(monkeypatch, *words)
    assert shell.command("demo") == f"{sys.executable} -m flows.run demo"


def test_elsewhere_paths_are_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    started(monkeypatch, ".venv/bin/sluice", script=True)
    assert shell.command("demo", anywhere=True) == f"{tmp_path}/.venv/bin/sluice demo"
    started(monkeypatch, "python", "-m", "flows.run", "demo")
    assert shell.command("demo", anywhere=True) == f"{sys.executable} -m flows.run demo"


def test_a_configuration_is_named_as_it_was_given_and_whole_for_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    started(monkeypatch, "sluice", script=True)
    said: list[str] = []

    @click.command()
    @click.argument("config")
    @click.option("--set", "overrides", multiple=True)
    def list_(config: str, overrides: tuple[str, ...]) -> None:
        whole = str(Path(config).absolute())
        said.extend([shell.command("x", whole), shell.command("x", whole, anywhere=True), shell.about("job list", "y")])

    list_.main(["../my dir/c.yaml", "--set", "jobs_dir=my jobs"], standalone_mode=False)
    assert said == [
        "sluice x '../my dir/c.yaml'",
        f"{tmp_path}/sluice x '{tmp_path}/../my dir/c.yaml'",
        "sluice job list '../my dir/c.yaml' y --set 'jobs_dir=my jobs'",
    ]
    assert shell.about("job list", "y") == "sluice job list CONFIG y"
