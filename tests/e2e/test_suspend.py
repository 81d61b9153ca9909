"""*Suspend* of a running job in the Prefect UI stops it, and *Cancel* ends that of a worker."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.conftest import Commands, ask_prefect, own_name, started, wait_until
from tests.e2e.machines import WorkerProcess, deployment, start_run, working
from tests.peers.project import Fhir, allowed, many_transactions

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

SLOW = {"action": "delay", "method": "POST", "times": None, "seconds": 1}


@pytest.fixture
def slow(tmp_path: Path, fhir: Fhir) -> Path:
    many_transactions(tmp_path, fhir.url)
    fhir.faults(SLOW)
    return tmp_path


def suspended(api: str, job: str, name: str, *, reschedule: bool) -> float:
    """Suspend the run as the UI's button does, with its default limit of five minutes; return the time."""
    expires = (datetime.now(UTC) + timedelta(seconds=300)).isoformat()
    details = {"pause_timeout": expires, "pause_reschedule": reschedule}
    body = {"state": {"type": "PAUSED", "name": name, "state_details": details}}
    assert ask_prefect("POST", f"{api}/flow_runs/{job}/set_state", body)["status"] == "ACCEPT"
    return time.monotonic()


def test_suspend_stops_a_deployment_job_within_ten_seconds_and_a_worker_continues_it(
    sluice: Commands, slow: Path, fhir: Fhir, prefect_api: str
) -> None:
    pool = f"pool-{own_name(sluice.cwd)}"
    deployed = deployment(prefect_api, pool, sluice.cwd)
    worker = WorkerProcess.start(sluice, prefect_api, pool, "one")
    try:
        worker.ready()
        job = start_run(prefect_api, deployed, {"config": str(slow / "config.yaml")})
        wait_until(lambda: len(fhir.posts()) > 2, 120)
        pressed = suspended(prefect_api, job, "Suspended", reschedule=True)
        log = slow / "jobs" / job / "job.log"
        wait_until(lambda: "the job is stopped (stopped by suspend)" in log.read_text(), 150)
        took = time.monotonic() - pressed
        assert took < 10
        wait_until(lambda: not worker.runs, 150)
        assert sluice.status(job)["state"] == "stopped"
        run = ask_prefect("GET", f"{prefect_api}/flow_runs/{job}")
        assert run["state_name"] == "Stopped"
        fhir.faults()
        assert sluice.here("pipeline", "continue", "config.yaml", job).code == 0
        wait_until(lambda: sluice.status(job)["state"] == "completed", 120)
        assert fhir.total() == 91
        assert log.read_text().count("step 1 local_import begins") == 1
        assert len(fhir.posts()) <= 31 + 10  # the file under way again
    finally:
        worker.stop()


def test_a_run_resumed_before_it_stopped_continues_and_its_worker_stays_alive(
    sluice: Commands, slow: Path, fhir: Fhir, prefect_api: str
) -> None:
    pool = f"pool-{own_name(sluice.cwd)}"
    deployed = deployment(prefect_api, pool, sluice.cwd)
    with working(sluice, prefect_api, pool, "one") as worker:
        jobs = [start_run(prefect_api, deployed, {"config": str(slow / "config.yaml")}) for _ in range(2)]
        logs = [slow / "jobs" / job / "job.log" for job in jobs]
        wait_until(lambda: all(log.exists() and "step 2 send begins" in log.read_text() for log in logs), 180)
        suspended(prefect_api, jobs[0], "Suspended", reschedule=True)
        assert ask_prefect("POST", f"{prefect_api}/flow_runs/{jobs[0]}/resume", {})["status"] == "ACCEPT"
        fhir.faults()
        for job in jobs:
            wait_until(lambda job=job: sluice.status(job)["state"] == "completed", 120)  # type: ignore[misc]
        assert worker.process.poll() is None, worker.log.read_text()
        assert logs[1].read_text().count("runs in process") == 1
    assert fhir.total() == 91


def test_a_cancel_reaches_the_run_of_a_worker_within_fifteen_seconds(
    sluice: Commands, slow: Path, fhir: Fhir, prefect_api: str
) -> None:
    pool = f"pool-{own_name(sluice.cwd)}"
    deployed = deployment(prefect_api, pool, sluice.cwd)
    with working(sluice, prefect_api, pool, "one"):
        job = start_run(prefect_api, deployed, {"config": str(slow / "config.yaml")})
        wait_until(lambda: len(fhir.posts()) > 2, 120)
        state = {"type": "CANCELLING", "name": "Cancelling"}
        ask_prefect("POST", f"{prefect_api}/flow_runs/{job}/set_state", {"state": state})
        run = f"{prefect_api}/flow_runs/{job}"
        wait_until(lambda: ask_prefect("GET", run)["state_type"] == "CANCELLED", allowed(15))
    assert sluice.status(job)["state"] == "cancelled"


def test_a_command_s_job_that_is_paused_through_the_api_stops_and_is_continued(
    sluice: Commands, slow: Path, fhir: Fhir, prefect_api: str
) -> None:
    child = sluice.start("pipeline", "start", "config.yaml", "--no-progress")
    job = started(child)
    wait_until(lambda: len(fhir.posts()) > 2, 120)
    pressed = suspended(prefect_api, job, "Paused", reschedule=False)
    _, err = child.communicate(timeout=120)
    assert time.monotonic() - pressed < 20  # the process ends with its imports, too
    assert f"job {job} is stopped" in err
    assert sluice.status(job)["state"] == "stopped"
    fhir.faults()
    assert sluice.here("pipeline", "continue", "config.yaml", job).code == 0
    assert fhir.total() == 91
