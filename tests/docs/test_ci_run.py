""".ci/run: the README's test command to the letter, then lint, format and types; pytest's closing line is the last."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import TESTS, read
from tests.docs.references import ROOT

TOOLS = ("pip", "python", "ruff", "mypy")


def run(directory: Path, **codes: int) -> tuple[int, list[str]]:
    """Run .ci/run in a project whose tools exit with these codes (``rest``: pytest's second run); return its output."""
    (directory / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", directory / ".ci/run")
    made = directory / "made"
    made.mkdir()
    for tool in TOOLS:
        words = {
            "python": 'echo "F."; echo "1 failed, 1 passed, 3 deselected in 0.12s"; echo "written late" >&2; '
            f'[ "$3" = -n ] && exit {codes.get("rest", 0)}',
            "pip": 'echo "pip $*"',
            "ruff": 'echo "ruff $*"',
            "mypy": 'echo "mypy"',
        }[tool]
        script(made / tool, f"{words}\nexit {codes.get(tool, 0)}")
    fake = directory / "fake"
    fake.mkdir()
    # "python3 -m venv .venv"
    script(fake / "python3", f"mkdir -p .venv/bin && cp {made}/* .venv/bin/ && exit {codes.get('python3', 0)}")
    done = subprocess.run(
        [directory / ".ci/run"], env=os.environ | {"PATH": f"{fake}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, cwd="/",
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_it_is_executable_and_holds_the_readmes_test_command_to_the_letter() -> None:
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert TESTS in [line.strip() for line in read(ROOT / ".ci/run").splitlines()]


def test_all_good_is_exit_code_0_and_the_last_line_is_pytests_closing_line(tmp_path: Path) -> None:
    code, lines = run(tmp_path)
    assert code == 0
    assert lines[-1] == "2 failed, 2 passed in 0.24s"
    assert [line for line in lines if line.startswith(("pip ", "ruff", "mypy"))] == [
        "pip install -c constraints.txt -e .[dev]", "ruff check", "ruff format --check", "mypy",
    ]  # fmt: skip


@pytest.mark.parametrize("tool", [*TOOLS, "rest"])
def test_it_fails_when_one_part_fails_and_still_runs_the_others(tmp_path: Path, tool: str) -> None:
    code, lines = run(tmp_path, **{tool: 1})
    assert code != 0
    assert {"ruff check", "ruff format --check", "mypy"} <= set(lines)
    assert any(line.startswith("failed: ") for line in lines)


def test_without_an_environment_nothing_passes(tmp_path: Path) -> None:
    code, lines = run(tmp_path, python3=1)
    assert code != 0
    assert "failed: tests" in lines


def test_a_missing_tool_is_a_failure(tmp_path: Path) -> None:
    code, lines = run(tmp_path, mypy=127)
    assert code != 0
    assert "failed: mypy" in lines
