"""A scheduled job whose worker dies goes on by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flows.prefect.api import PrefectApi
from tests.conftest import Commands, address_of, own_name, wait_until
from tests.e2e.machines import WorkerProcess, deployment
from tests.peers.project import Fhir, many_transactions

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@contextmanager
def working(sluice: Commands, api: str, pool: str, name: str) -> Iterator[WorkerProcess]:
    """Run a worker that polls for runs every second."""
    worker = WorkerProcess.start(sluice, api, pool, name, {})
    try:
        worker.ready()
        yield worker
    finally:
        worker.stop()


@pytest.fixture
def api(prefect_api: str) -> Iterator[PrefectApi]:
    with PrefectApi(address_of(prefect_api)) as api:
        yield api


@pytest.fixture
def nightly(sluice: Commands, prefect_api: str, api: PrefectApi, fhir: Fhir, tmp_path: Path) -> tuple[str, str]:
    """Return a pool, and a deployment on it with a schedule whose time comes in some seconds."""
    many_transactions(tmp_path, fhir.url)
    pool = f"pool-{own_name(tmp_path)}"
    deployed = deployment(prefect_api, pool, tmp_path)
    api.request("PATCH", f"/deployments/{deployed}", {"parameters": {"config": str(tmp_path / "config.yaml")}})
    due = (datetime.now(UTC) + timedelta(seconds=15)).isoformat()
    schedule = {"schedule": {"interval": 86400, "anchor_date": due}, "active": True}
    api.request("POST", f"/deployments/{deployed}/schedules", [schedule])
    return pool, deployed


def first(api: PrefectApi, deployed: str) -> Callable[[], dict[str, Any] | None]:
    """Return the first run of the schedule, as it is now."""

    def run() -> dict[str, Any] | None:
        body = {"deployments": {"id": {"any_": [deployed]}}, "sort": "EXPECTED_START_TIME_ASC", "limit": 1}
        found = api.request("POST", "/flow_runs/filter", body)
        return dict(found[0]) if found else None

    return run


def in_the_middle_of_send(api: PrefectApi, deployed: str, fhir: Fhir) -> str:
    fhir.faults({"action": "delay", "method": "POST", "times": None, "seconds": 0.5})
    wait_until(lambda: fhir.count("Patient") > 0, 180)
    return str((first(api, deployed)() or {})["id"])


def complete(api: PrefectApi, job: str, fhir: Fhir) -> None:
    fhir.faults()
    wait_until(lambda: (api.read_run(job) or {})["state_type"] == "COMPLETED", 120)
    assert fhir.total() == 91


def test_a_nightly_that_was_cut_off_goes_on_with_a_worker(
    sluice: Commands, prefect_api: str, api: PrefectApi, nightly: tuple[str, str], fhir: Fhir,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for module in ("state", "unfinished"):
        monkeypatch.setattr(f"flows.job.{module}.TAKEN_UP", timedelta(seconds=1))
    pool, deployed = nightly
    with working(sluice, prefect_api, pool, "one") as worker:
        job = in_the_middle_of_send(api, deployed, fhir)
        assert sluice.here("job", "unfinished", "config.yaml").code == 0, "it runs"
        worker.die()
    run = api.read_run(job) or {}
    assert run["state_type"] == "RUNNING"
    wait_until(lambda: sluice.here("job", "unfinished", "config.yaml").code == 1, 30)
    assert f"job {job} was interrupted at send" in sluice.here("job", "unfinished", "config.yaml").out
    ran = sluice.here("job", "unfinished", "config.yaml", "--continue")
    assert (ran.code, ran.out) == (0, f"job {job} was interrupted at send; its worker goes on with it\n")
    back = api.read_run(job) or {}
    assert (back["state_name"], back["labels"]["job.continued"]) == ("AwaitingRetry", 1)
    assert back["next_scheduled_start_time"][:19] == run["start_time"][:19]
    with working(sluice, prefect_api, pool, "two"):
        complete(api, job, fhir)
    listed = json.loads(sluice.here("job", "list", "config.yaml", "--json").out)
    assert [row["state"] for row in listed if row["id"] == job] == ["completed"]
