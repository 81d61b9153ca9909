"""Job arguments: an id, the unique beginning of one, or ``latest``; and the step to repeat."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from config import load_config
from flows.job.find import Session, step_to_repeat
from flows.job.record import JobRecord
from flows.prefect.api import PrefectApi
from tasks.shared.errors import InputError

ONE, OTHER, LATER, ELSEWHERE = (
    f"{start}-1111-4222-8333-444455556666" for start in ("0b2c4a5e", "0b2c9999", "77aa0000", "88aa0000")
)  # fmt: skip

AHEAD = "2998-01-01T00:00:00Z"
"""The time of a job whose server's clock is ahead of this machine's."""

SCHEDULED = {
    "auto_scheduled": True, "expected_start_time": "2999-01-01T00:00:00Z", "state_type": "SCHEDULED",
    "deployment_id": "nightly",
}  # fmt: skip


def run(job: str, created: str, jobs_dir: Path, **more: Any) -> dict[str, Any]:
    labels = {"job.directory": str(jobs_dir / job), "job.steps": "local_import,wait,pseudonymizer,wait"}
    labels["job.step.1"] = '{"position": 1, "name": "local_import", "state": "completed"}'
    return {"id": job, "created": created, "state_type": "COMPLETED", "labels": labels} | more


@pytest.fixture
def session(tmp_path: Path) -> Session:
    (tmp_path / "c.yaml").write_text(f"pipeline: {{enabled_steps: [local_import]}}\njobs_dir: {tmp_path / 'jobs'}\n")
    jobs = tmp_path / "jobs"
    runs = [
        run(ONE, "2026-01-01T00:00:00Z", jobs), run(OTHER, AHEAD, jobs),
        run(LATER, "2026-01-03T00:00:00Z", jobs, **SCHEDULED),
        run(ELSEWHERE, "2026-01-04T00:00:00Z", tmp_path / "others"),
    ]  # fmt: skip
    by_id = {one["id"]: one for one in runs}
    api = SimpleNamespace(runs=lambda *_: runs, read_run=by_id.get)
    return Session(load_config(tmp_path / "c.yaml"), cast("PrefectApi", api))


@pytest.mark.parametrize(
    ("text", "meant"),
    [(ONE, ONE), (ONE.upper(), ONE), ("0b2c4", ONE), ("0B2C9", OTHER), (ONE[:13], ONE), ("latest", OTHER)],
)
def test_an_id_its_beginning_and_latest_name_a_job(session: Session, text: str, meant: str) -> None:
    assert session.find(text) == meant
    assert session.job(meant).id == meant


@pytest.mark.parametrize(
    ("text", "reference", "says"),
    [
        ("0b2", "job-id", "4 characters"), ("../notes", "job-id", "job list"), ("lates", "job-id", "latest"),
        ("0b2c", "id-ambiguous", f"{ONE}, {OTHER}"), ("0b2d", "job-unknown", "job list"),
        ("88aa", "job-unknown", "jobs"),
    ],
)  # fmt: skip
def test_what_names_none_or_several_is_an_error(session: Session, text: str, reference: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        session.find(text)
    assert caught.value.reference == reference
    assert says in caught.value.render()


def test_a_job_of_another_jobs_directory_is_refused(session: Session) -> None:
    with pytest.raises(InputError) as caught:
        session.job(ELSEWHERE)
    assert caught.value.reference == "job-elsewhere"


@pytest.mark.parametrize(
    ("step", "found"),
    [("local_import", 1), ("1", 1), ("2", 2), ("wait", "step-ambiguous"), ("send", "step-unknown"),
     ("9", "step-unknown"), ("pseudonymizer", "step-order")],
)  # fmt: skip
def test_a_step_is_given_by_name_or_position(session: Session, step: str, found: int | str) -> None:
    record: JobRecord = session.job(ONE)
    if isinstance(found, int):
        assert step_to_repeat(record, step) == found
        return
    with pytest.raises(InputError) as caught:
        step_to_repeat(record, step)
    assert caught.value.reference == found
