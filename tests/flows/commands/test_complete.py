"""Shell completion at the cursor."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from flows.run import cli
from tests.conftest import ROOT

OLD, NEW = "0b2c4a5e-1111-4222-8333-444455556666", "77aa0000-1111-4222-8333-444455556666"
CONFIG = 'jobs_dir: "my jobs"  # here\npipeline:\n  enabled_steps:\n    - local_import  # not wait\n    - send\n'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CONFIG)
    for name, age in ((OLD, 100), (NEW, 50), (".prefect", 0)):
        directory = tmp_path / "my jobs" / name
        directory.mkdir(parents=True)
        os.utime(directory, (1e9 - age, 1e9 - age))
    return tmp_path


def offered(line: str) -> list[str]:
    """Return the completions of the last word of a line; files and directories by their kind."""
    words = shlex.split(line)
    words, last = (words, "") if line.endswith(" ") else (words[:-1], words[-1])
    found = BashComplete(cli, {}, "sluice", "_SLUICE_COMPLETE").get_completions(words[1:], last)
    return [one.value if one.type == "plain" else one.type for one in found]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("sluice pipe", ["pipeline"]),
        ("sluice pipeline st", ["start", "status"]),
        ("sluice pipeline start --no", ["--no-progress"]),
        ("sluice pipeline start c", ["file"]),
        ("sluice pipeline start c.yaml --dir ", ["dir"]),
        ("sluice pipeline status c.yaml ", ["latest", NEW, OLD]),
        ("sluice pipeline continue c.yaml 0b", [OLD]),
        ("sluice job list c.yaml --state c", ["completed", "cancelled"]),
    ],
)
def test_the_word_at_the_cursor(line: str, values: list[str]) -> None:
    assert offered(line) == values


def test_where_the_jobs_are_is_looked_for_as_the_program_does(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    line = "sluice pipeline status c.yaml 77"
    monkeypatch.setenv("APP_JOBS_DIR", "elsewhere")
    assert offered(line) == []
    monkeypatch.delenv("APP_JOBS_DIR")
    monkeypatch.setenv("PLACE", "my")
    for text in ("jobs_dir: ${PLACE} jobs\n", "pipeline: {}\njobs_dir: 'my jobs'"):
        (here / "c.yaml").write_text(text)
        assert offered(line) == [NEW]


@pytest.mark.e2e
def test_a_look_loads_nothing_that_is_slow() -> None:
    code = (
        "import sys; from click.shell_completion import BashComplete; from flows.run import cli\n"
        "BashComplete(cli, {}, 'sluice', '_X').get_completions(['pipeline', 'status', 'c.yaml'], '')\n"
        "print(sorted({'prefect', 'pydantic', 'httpx', 'yaml', 'sqlite3'} & sys.modules.keys()))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


@pytest.mark.e2e
def test_bash_asks_the_program_as_it_was_called(here: Path) -> None:
    program = here / "my-env" / "sluice"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom flows.run import main\nmain()\n")
    program.chmod(0o755)
    line = f"COMP_WORDS=({program} pipeline status c.yaml 77) COMP_CWORD=4; _sluice_completion {program}"
    asked = f'eval "$({program} completion bash)"; {line}; printf \'%s\\n\' "${{COMPREPLY[@]}}"'
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    bash = [shutil.which("bash") or "bash", "--norc", "-c", asked]
    ran = subprocess.run(bash, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == f"{NEW}\n"
