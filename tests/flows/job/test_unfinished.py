"""``job unfinished``: which jobs were cut off, and which of them go back to their worker."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from config import load_config
from flows.job.find import Session
from flows.job.lock import LOCK
from flows.job.unfinished import CONTINUED, look
from flows.prefect.api import PrefectApi

JOB = "0b2c4a5e-1111-4222-8333-444455556666"
CUT_OFF = f"job {JOB} was interrupted at send"


class OneRun:
    """A Prefect API with one run. ``seen_first`` is the run as it is found; later it is read as ``run``."""

    def __init__(self, run: dict[str, Any], later: dict[str, Any]) -> None:
        self.seen_first, self.run = run, run | later
        self.state: dict[str, Any] = {}

    def runs(self, states: tuple[str, ...]) -> list[dict[str, Any]]:
        return [self.seen_first] if self.seen_first["state_type"] in states else []

    def read_run(self, _: str) -> dict[str, Any]:
        return self.run

    def set_labels(self, _: str, labels: dict[str, Any]) -> bool:
        self.run["labels"] = self.run["labels"] | labels
        return True

    def request(self, _method: str, path: str, body: dict[str, Any]) -> None:
        assert path.endswith("/set_state")
        assert body["force"]
        self.state = body["state"]


@pytest.fixture
def one_run(tmp_path: Path) -> Callable[..., tuple[Session, OneRun]]:
    (tmp_path / "c.yaml").write_text(f"pipeline: {{enabled_steps: [local_import]}}\njobs_dir: {tmp_path}\n")
    (tmp_path / JOB).mkdir()

    def made(
        *, kind: str = "RUNNING", name: str = "", age: float = 150, labels: Any = (), later: Any = (), **more: Any
    ) -> tuple[Session, OneRun]:
        stamp = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
        known = {"job.directory": str(tmp_path / JOB), "job.steps": "send"} | dict(labels)
        run = {
            "id": JOB, "state_id": "first", "state_type": kind, "state_name": name or kind.capitalize(),
            "state": {"timestamp": stamp}, "labels": known, "auto_scheduled": True, "deployment_id": "d",
            "expected_start_time": "2026-11-28T01:30:00Z",
        }  # fmt: skip
        api = OneRun(run | more, dict(later))
        return Session(load_config(tmp_path / "c.yaml"), cast("PrefectApi", api)), api

    return made


@pytest.mark.parametrize(
    ("run", "listed"),
    [
        ({}, True), ({"kind": "PENDING"}, True), ({"kind": "CRASHED"}, True), ({"auto_scheduled": False}, True),
        ({"age": 60}, False), ({"kind": "CRASHED", "age": 60}, False), ({"age": 60, "deployment_id": None}, False),
        ({"kind": "CRASHED", "name": "Stopped"}, False), ({"kind": "FAILED"}, False),
    ],
)  # fmt: skip
def test_a_job_is_cut_off_two_minutes_after_its_process_is_gone(
    one_run: Callable[..., tuple[Session, OneRun]], run: dict[str, Any], listed: bool
) -> None:
    session, api = one_run(**run)
    found = [*look(session, go=False)]
    assert [line.startswith(f"{CUT_OFF}\ncontinue with: ") for line in found] == [True] * listed
    assert api.state == {}


@pytest.mark.parametrize(("how", "lines"), [(fcntl.LOCK_EX, 0), (fcntl.LOCK_SH, 1)], ids=["runs", "begins"])
def test_a_job_that_another_process_has_is_left_alone(
    one_run: Callable[..., tuple[Session, OneRun]], tmp_path: Path, how: int, lines: int
) -> None:
    session, api = one_run()
    with (tmp_path / JOB / LOCK).open("w") as lock:
        fcntl.flock(lock, how)
        assert len([*look(session, go=True)]) == lines
    assert api.state == {}


def test_a_job_whose_directory_this_machine_does_not_see_is_left_alone(
    one_run: Callable[..., tuple[Session, OneRun]], tmp_path: Path
) -> None:
    session, api = one_run()
    (tmp_path / JOB).rmdir()
    (line,) = look(session, go=True)
    assert "continue with: " in line
    assert api.state == {}


@pytest.mark.parametrize(
    ("run", "counted"),
    [
        ({}, 1), ({"kind": "PENDING"}, 1),
        ({"labels": {CONTINUED: 2}}, 3), ({"labels": {CONTINUED: 3}}, None), ({"auto_scheduled": False}, None),
        ({"later": {"state_id": "second"}}, None),
    ],
)  # fmt: skip
def test_one_of_a_schedule_goes_back_to_its_old_place_three_times(
    one_run: Callable[..., tuple[Session, OneRun]], run: dict[str, Any], counted: int | None
) -> None:
    session, api = one_run(**run)
    (line,) = look(session, go=True)
    if counted is None:
        assert "continue with: " in line
        assert api.state == {}
        return
    assert line == f"{CUT_OFF}; its worker goes on with it"
    assert api.run["labels"][CONTINUED] == counted
    assert (api.state["type"], api.state["name"]) == ("SCHEDULED", "AwaitingRetry")
    assert api.state["state_details"] == {"scheduled_time": "2026-11-28T01:30:00Z"}
