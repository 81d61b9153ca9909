"""Runs of shards at Prefect, as the parent follows them (6-scale-out.md, *How*)."""

from __future__ import annotations

import fcntl
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.engine.api import PrefectApi
from flows.job.running.lock import LOCK
from flows.job.running.state import TAKEN_UP
from flows.shards.children import FAILED_NAME, SILENT, TAKING, ChildState, PoolChildren
from flows.shards.files import ShardOrder
from tasks.shared.errors import StorageError
from tasks.shared.files.private_file import open_private
from tests.conftest import address_of

pytestmark = pytest.mark.e2e

SHARDS = 12
"""Shards of a job."""


@dataclass
class ChildRuns:
    """Runs of the shards of one job, which no worker takes up, on a clock that the test moves."""

    api: PrefectApi
    deployment: str
    job: str
    jobs: Path
    now: float = 0.0

    def children(self) -> PoolChildren:
        context: Any = SimpleNamespace(job_id=self.job, job_dir=self.jobs / self.job, position=2)
        return PoolChildren(self.api, self.deployment, context, lambda: self.now)

    def start(self, children: PoolChildren, shard: int, attempt: int) -> None:
        children.start(ShardOrder(self.job, 2, shard, attempt, 1, "", "", {}))

    def is_after(self, children: PoolChildren, seconds: float) -> dict[int, ChildState]:
        self.now += seconds
        return dict(children.states())


@pytest.fixture
def runs(prefect_api: str, tmp_path: Path) -> Any:
    with PrefectApi(address_of(prefect_api)) as api:
        flow = api.created("/flows/", {"name": tmp_path.name})
        deployment = api.created("/deployments/", {"name": tmp_path.name, "flow_id": flow})
        yield ChildRuns(api, deployment, api.created("/flow_runs/", {"flow_id": flow}), tmp_path)


def test_a_look_at_all_shards_takes_one_request(runs: ChildRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    children = runs.children()
    for shard in range(SHARDS):
        runs.start(children, shard, 1)
    requested: list[str] = []
    request = PrefectApi.request

    def counted(api: PrefectApi, method: str, path: str, *more: Any) -> Any:
        requested.append(path)
        return request(api, method, path, *more)

    monkeypatch.setattr(PrefectApi, "request", counted)
    assert runs.is_after(children, 5) == dict.fromkeys(range(SHARDS), ChildState.WAITING)
    assert requested == ["/flow_runs/filter"]


def test_a_step_that_is_divided_anew_gets_runs_of_its_own(runs: ChildRuns) -> None:
    first = runs.children()
    assert first.attempts(0) == 0
    runs.start(first, 0, 3)
    again = runs.children()
    assert (again.attempts(0), again.attempts(1)) == (3, 0)
    runs.start(again, 0, 4)
    assert runs.is_after(again, 5) == {0: ChildState.WAITING}


@pytest.mark.parametrize(
    ("state", "patience", "end"),
    [
        ("RUNNING", TAKING, "ShardLost"),
        ("PENDING", TAKEN_UP.total_seconds(), "ShardLost"),
        ("CANCELLING", SILENT, "Cancelled"),
    ],
)
def test_a_run_without_a_process_is_lost(runs: ChildRuns, state: str, patience: float, end: str) -> None:
    children = runs.children()
    runs.start(children, 0, 1)
    (run,) = children._runs.values()
    for one in ["RUNNING", state] if state == "CANCELLING" else [state]:
        runs.api.set_state(run, one)
    assert runs.is_after(children, 5) == {0: ChildState.RUNNING}
    assert runs.is_after(children, patience - 1) == {0: ChildState.RUNNING}
    assert runs.is_after(children, 5) == {0: ChildState.ENDED}
    assert (runs.api.read_run(run) or {})["state_name"] == end


def test_the_error_of_a_run_without_a_receipt_is_that_of_its_state(runs: ChildRuns) -> None:
    children = runs.children()
    for shard, message in enumerate(["error[storage-failed]: see the log", "error[shard-unknown]: see the log", ""]):
        runs.start(children, shard, 1)
        runs.api.set_state(children._runs[shard], "FAILED", name=FAILED_NAME, message=message)
    assert set(runs.is_after(children, 5).values()) == {ChildState.ENDED}
    error = children.error(0)
    assert isinstance(error, StorageError)
    assert error.reference == "storage-failed"
    assert children.error(0) is None  # reported once
    assert children.error(1) is children.error(2) is None  # errors of its order: it is submitted again


def test_a_run_that_takes_its_shard_late_goes_on(runs: ChildRuns) -> None:
    """Each state has its own time limit, and a run that holds its shard is alive however late it took it."""
    children = runs.children()
    runs.start(children, 0, 1)
    (run,) = children._runs.values()
    runs.api.set_state(run, "PENDING")
    assert runs.is_after(children, 5) == {0: ChildState.RUNNING}
    runs.api.set_state(run, "RUNNING")
    assert runs.is_after(children, TAKEN_UP.total_seconds() - 1) == {0: ChildState.RUNNING}
    directory = runs.jobs / runs.job / ".results" / "2" / "0"
    directory.mkdir(parents=True, mode=0o700)
    with open_private(directory / LOCK, "ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert runs.is_after(children, 2 * TAKING) == {0: ChildState.RUNNING}
        assert runs.is_after(children, 2 * TAKING) == {0: ChildState.RUNNING}
    assert runs.is_after(children, SILENT - 1) == {0: ChildState.RUNNING}
    assert runs.is_after(children, 5) == {0: ChildState.ENDED}
