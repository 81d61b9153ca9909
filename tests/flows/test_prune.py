"""``job prune``: old jobs go, directory and record; what runs or waits stays (issue "Notifications and retention")."""

import json
import time
from pathlib import Path

import pytest

from flows.lock import JobLock
from tests.conftest import Commands


def jobs(sluice: Commands) -> dict[str, str]:
    return {row["id"]: row["state"] for row in json.loads(sluice("job", "list", "config.yaml", "--json").out)}


@pytest.fixture
def three(sluice: Commands, project: Path) -> dict[str, str]:
    """A completed, a cancelled and a waiting job."""
    named = {}
    for kind, decision in (("completed", "--approve"), ("cancelled", "--reject"), ("waiting", None)):
        job = sluice("pipeline", "start", "config.yaml").job
        if decision:
            assert sluice("pipeline", "continue", "config.yaml", job, decision).code == 0
        named[kind] = job
    time.sleep(0.1)
    return named


def test_old_jobs_are_deleted_and_a_waiting_one_never_is(
    sluice: Commands, project: Path, three: dict[str, str]
) -> None:
    shown = sluice("job", "prune", "config.yaml", "--older-than", "50ms", "--dry-run", "--json")
    assert {row["id"] for row in json.loads(shown.out)} == {three["completed"], three["cancelled"]}
    assert all(row["bytes"] > 0 for row in json.loads(shown.out))
    assert len(jobs(sluice)) == 3  # a dry run deletes nothing

    young = sluice("job", "prune", "config.yaml", "--older-than", "P1D")
    assert (young.code, young.out) == (0, "0 jobs, 0 B are deleted\n")

    with JobLock(project / "jobs" / three["completed"]):
        held = sluice("job", "prune", "config.yaml", "--older-than", "50ms")
        assert held.out.splitlines()[0].startswith(f"job {three['cancelled']}  cancelled")
        assert held.out.splitlines()[-1].startswith("1 jobs, ")
    assert sluice("job", "prune", "config.yaml", "--older-than", "PT0.05S").code == 0
    assert jobs(sluice) == {three["waiting"]: "waiting"}
    left = {path.name for path in (project / "jobs").iterdir() if not path.name.startswith(".")}
    assert left == {three["waiting"]}


def test_an_age_that_is_none_is_a_usage_error(sluice: Commands, project: Path) -> None:
    ran = sluice("job", "prune", "config.yaml", "--older-than", "30")
    assert ran.code == 2
    assert "--older-than" in ran.err


def test_before_the_first_job_there_is_nothing_to_prune(sluice_alone: Commands, project: Path) -> None:
    ran = sluice_alone("job", "prune", "config.yaml", "--older-than", "P30D")
    assert (ran.code, ran.out) == (0, "0 jobs, 0 B are deleted\n")
