"""A scheduled job whose machine dies or whose worker is stopped: Prefect is corrected and the job continues."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flows.engine.api import PrefectApi
from tests.conftest import Commands, address_of, own_name, wait_until
from tests.e2e.machines import WorkerProcess, deployment
from tests.peers.project import Fhir, many_transactions

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@contextmanager
def working(sluice: Commands, api: str, pool: str, name: str, *options: str) -> Iterator[WorkerProcess]:
    """Run a worker of ours that polls for runs every second."""
    log = sluice.cwd / f"{name}.log"
    often = {"PREFECT_WORKER_QUERY_SECONDS": "1", "PREFECT_API_URL": api, "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "deployments.worker", "--pool", pool, "--name", name, *options],
            cwd=sluice.cwd, env=sluice.environment | often, stdout=file, stderr=file,
        )  # fmt: skip
    worker = WorkerProcess(process, log, {})
    try:
        worker.ready()
        yield worker
    finally:
        if process.poll() is None:
            process.terminate()
            assert process.wait(60) == 0


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


def states(api: PrefectApi, job: str) -> list[dict[str, Any]]:
    """Return the states of a run, in their order."""
    return list(api.request("GET", f"/flow_run_states/?flow_run_id={job}"))


def names(api: PrefectApi, job: str) -> list[str]:
    return [state["name"] for state in states(api, job)]


def test_a_nightly_of_a_dead_machine_is_interrupted_and_continued_by_a_worker(
    sluice: Commands, prefect_api: str, api: PrefectApi, nightly: tuple[str, str], fhir: Fhir
) -> None:
    pool, deployed = nightly
    with working(sluice, prefect_api, pool, "one") as worker:
        job = in_the_middle_of_send(api, deployed, fhir)
        worker.die()
    assert (api.read_run(job) or {})["state_type"] == "RUNNING"
    with working(sluice, prefect_api, pool, "two"):
        # A worker looks every minute (docs/prefect-ui.md); the rest is for its start. Workers of other tests share the
        # server and may correct the run first; then this one continues the run at its next look.
        wait_until(lambda: "Continuing" in names(api, job), 90)
        complete(api, job, fhir)
    assert "Interrupted" in names(api, job)
    messages = [state["message"] or "" for state in states(api, job)]
    assert any(one.startswith("interrupted at send: the process that ran it is gone") for one in messages)
    assert f"job {job}: was interrupted, and is continued" in (sluice.cwd / "two.log").read_text()


def test_a_nightly_stopped_with_its_worker_continues_unless_unfinished_is_tell(
    sluice: Commands, prefect_api: str, api: PrefectApi, nightly: tuple[str, str], fhir: Fhir
) -> None:
    pool, deployed = nightly
    with working(sluice, prefect_api, pool, "one"):
        job = in_the_middle_of_send(api, deployed, fhir)
    assert (api.read_run(job) or {})["state_name"] == "Stopped"
    with working(sluice, prefect_api, pool, "two", "--unfinished", "tell") as second:
        wait_until(lambda: f"job {job}: is stopped at send" in second.log.read_text(), 60)
    assert (api.read_run(job) or {})["state_name"] == "Stopped"
    with working(sluice, prefect_api, pool, "three"):
        complete(api, job, fhir)
    listed = json.loads(sluice.here("job", "list", "config.yaml", "--json").out)
    assert [row["state"] for row in listed if row["id"] == job] == ["completed"]
