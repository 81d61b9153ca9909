"""The check for a monitoring tool on ``docs/observability.md``, with the exit codes that such tools know."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flows.reports import summary
from flows.reports.journal import timestamp
from tests.docs.pages import example
from tests.flows.reports.test_summary import ERROR, document


def check(jobs: Path, *, hours: str = "26") -> tuple[int, str]:
    program = example("docs/observability.md", '"""How the last run ended')
    arguments = [sys.executable, "-I", "-c", program.text, str(jobs), hours]
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert ran.stderr == ""
    return ran.returncode, ran.stdout


def ended(jobs: Path, state: str, *, hours_ago: float, transient: bool = False) -> str:
    """Make a job that ended so; return its id."""
    error = ERROR.model_copy(update={"transient": transient}) if state in ("failed", "cancelled") else None
    name = f"{state}-{hours_ago}"
    (jobs / name).mkdir(parents=True)
    ended = timestamp(datetime.now(UTC) - timedelta(hours=hours_ago))
    one = document(error=error).model_copy(update={"id": name, "state": state, "ended": ended})
    summary.write(jobs / name, one)
    return name


def test_a_run_that_is_complete_is_fine_with_its_numbers(tmp_path: Path) -> None:
    ended(tmp_path, "failed", hours_ago=3)
    job = ended(tmp_path, "completed", hours_ago=2)
    numbers = "seconds=0.5 resources=0 retries=1 warnings=1"
    assert check(tmp_path) == (0, f"SLUICE OK - job {job} completed | {numbers}\n")


@pytest.mark.parametrize(
    ("state", "transient", "code"),
    [("waiting", False, 1), ("stopped", False, 1), ("cancelled", False, 1), ("failed", True, 1), ("failed", False, 2)],
)
def test_the_newest_run_decides(tmp_path: Path, state: str, transient: bool, code: int) -> None:
    ended(tmp_path, "completed", hours_ago=2)
    job = ended(tmp_path, state, hours_ago=1, transient=transient)
    found, said = check(tmp_path)
    assert found == code
    assert f" - job {job} {state}" in said
    assert ("rejected" in said) is (state in ("failed", "cancelled"))


def test_no_complete_run_for_too_long_is_critical(tmp_path: Path) -> None:
    ended(tmp_path, "completed", hours_ago=30)
    ended(tmp_path, "stopped", hours_ago=1)
    assert check(tmp_path)[0] == 2
    assert check(tmp_path, hours="48")[0] == 1


def test_without_any_run_nothing_is_known(tmp_path: Path) -> None:
    assert check(tmp_path)[0] == 3
