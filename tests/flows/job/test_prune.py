"""``job delete`` and ``job prune``: the files go first, the record last; what runs or waits stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.job.lock import LOCK
from tests.conftest import Commands, wait_until


def jobs(sluice: Commands) -> dict[str, str]:
    return {row["id"]: row["state"] for row in json.loads(sluice("job", "list", "config.yaml", "--json").out)}


@pytest.fixture
def three(sluice: Commands, project: Path) -> dict[str, str]:
    """Return a completed, a cancelled and a waiting job."""
    named = {}
    for kind, decision in (("completed", "--approve"), ("cancelled", "--reject"), ("waiting", None)):
        job = sluice("pipeline", "start", "config.yaml").job
        if decision:
            assert sluice("pipeline", "continue", "config.yaml", job, decision).code == 0
        named[kind] = job
    return named


def test_old_jobs_are_deleted_and_a_waiting_or_running_one_never_is(
    sluice: Commands, project: Path, three: dict[str, str]
) -> None:
    young = sluice("job", "prune", "config.yaml", "--older", "P1D", "--yes")
    assert (young.code, young.out) == (0, "no job is that old\n")
    assert sluice("job", "prune", "config.yaml", "--older", "1ms").code == 2, "nobody is asked here"
    assert sluice("job", "prune", "config.yaml", "--older", "30", "--yes").code == 2
    assert len(jobs(sluice)) == 3

    assert sluice("job", "prune", "config.yaml", "--older", "1ms", "--yes").code == 0
    assert jobs(sluice) == {three["waiting"]: "waiting"}
    left = {path.name for path in (project / "jobs").iterdir() if not path.name.startswith(".")}
    assert left == {three["waiting"]}
    refused = sluice("job", "delete", "config.yaml", three["waiting"], "--yes")
    assert (refused.code, refused.err.splitlines()[0][:19]) == (4, "error[job-in-work]:")


def test_a_removal_that_was_interrupted_is_repeated(sluice: Commands, project: Path, three: dict[str, str]) -> None:
    job = project / "jobs" / three["completed"]
    for path in job.iterdir():
        if path.is_file() and path.name != LOCK:
            path.unlink()
    assert sluice("job", "delete", "config.yaml", job.name[:8], "--yes").code == 0
    assert not job.exists()
    assert job.name not in jobs(sluice)
    assert sluice("job", "delete", "config.yaml", job.name, "--yes").code == 2


def test_a_file_that_cannot_be_removed_keeps_the_record(
    sluice: Commands, project: Path, three: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "import")

    with monkeypatch.context() as context:
        context.setattr("shutil.rmtree", refuse)
        ran = sluice("job", "prune", "config.yaml", "--older", "1ms", "--yes")
    assert ran.code == 1
    assert ran.err.count("error[job-delete]") == 2
    assert len(jobs(sluice)) == 3
    wait_until(lambda: sluice("job", "prune", "config.yaml", "--older", "1ms", "--yes").code == 0, 10)
    assert len(jobs(sluice)) == 1
