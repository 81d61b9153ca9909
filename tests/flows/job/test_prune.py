"""``job delete`` and ``job prune``: the files go first, the record last; what runs or waits stays."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from config import load_config
from flows.job.find import Session
from flows.job.lock import LOCK, JobBusyError
from flows.job.prune import old_jobs, remove
from flows.job.waiting import Answer, Waiting
from flows.prefect.api import PrefectApi
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


ID = "0b2c4a5e-1111-4222-8333-444455556666"
WAITS = {
    "job.steps": "wait", "job.step.1": '{"position": 1, "name": "wait", "state": "waiting"}',
    "job.waiting": Waiting(position=1, step="wait", directory="/d", looked_at="/l", reads="/l")
    .model_dump_json(),
}  # fmt: skip
ANSWERED = WAITS | {"job.answer.1": Answer(approved=True, by="me", when="now").model_dump_json()}


def session(tmp_path: Path, **run: Any) -> Session:
    """Return the jobs of a Prefect API that has this run."""
    (tmp_path / "c.yaml").write_text(f"pipeline: {{enabled_steps: [local_import]}}\njobs_dir: {tmp_path}\n")
    shown = {"id": ID, "created": "2026-01-01T00:00:00Z", "parameters": {"config": f"{tmp_path}/c.yaml"}} | run
    api = SimpleNamespace(runs=lambda *_: [shown], read_run=lambda _: shown)
    return Session(load_config(tmp_path / "c.yaml"), cast("PrefectApi", api))


@pytest.mark.parametrize(
    ("run", "old"),
    [
        ({"state_type": "COMPLETED"}, True), ({"state_type": "FAILED"}, True), ({"state_type": "CRASHED"}, True),
        ({"state_type": "COMPLETED", "updated": "2999-01-01T00:00:00Z"}, False),
        ({"state_type": "PAUSED", "labels": WAITS}, False), ({"state_type": "RUNNING", "labels": ANSWERED}, False),
        ({"state_type": "SCHEDULED", "deployment_id": "d"}, False),
    ],
)  # fmt: skip
def test_a_job_is_old_that_ended_and_has_not_changed(tmp_path: Path, run: dict[str, Any], old: bool) -> None:
    assert len(old_jobs(session(tmp_path, **run), timedelta(days=30))) == old


def test_a_job_that_was_continued_meanwhile_is_not_removed(tmp_path: Path) -> None:
    found = session(tmp_path, state_type="RUNNING", labels=ANSWERED)
    (tmp_path / ID).mkdir()
    with pytest.raises(JobBusyError):
        remove(found, ID)
    assert (tmp_path / ID).is_dir()


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
    wait_until(lambda: sluice("job", "prune", "config.yaml", "--older", "1ms", "--yes").code == 0)
    assert len(jobs(sluice)) == 1
