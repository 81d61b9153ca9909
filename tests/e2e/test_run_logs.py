"""The Logs tab of a run in the Prefect UI."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Commands, ask_prefect, own_name, wait_until
from tests.e2e.machines import WorkerProcess, deployment, start_run
from tests.peers.project import Fhir

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

Start = Callable[[dict[str, Any]], str]


@contextlib.contextmanager
def a_worker(sluice: Commands, api: str) -> Iterator[Start]:
    pool = f"pool-{own_name(sluice.cwd)}"
    deployed = deployment(api, pool, sluice.cwd)
    worker = WorkerProcess.start(sluice, api, pool, "one")
    try:
        worker.ready()
        yield lambda parameters: start_run(api, deployed, parameters)
    finally:
        worker.stop()


@contextlib.contextmanager
def commands(sluice: Commands, api: str) -> Iterator[Start]:
    yield lambda parameters: sluice("pipeline", "start", parameters["config"]).job


def log_of(api: str, job: str) -> list[dict[str, Any]]:
    wanted = {"logs": {"flow_run_id": {"any_": [job]}}, "sort": "TIMESTAMP_ASC", "limit": 200}
    return list(ask_prefect("POST", f"{api}/logs/filter", wanted))


@pytest.mark.parametrize("kind", [commands, a_worker], ids=["command", "worker"])
def test_the_logs_of_a_run_have_the_lines_of_the_job_log(
    sluice: Commands, project: Path, prefect_api: str, kind: Callable[..., Any]
) -> None:
    with kind(sluice, prefect_api) as start:
        job = start({"config": str(project / "config.yaml")})
        wait_until(lambda: sluice.status(job)["state"] == "waiting", 120)
        last = "the job waits at step 2 for a person's decision"
        wait_until(lambda: any(last in one["message"] for one in log_of(prefect_api, job)), 150)
    lines = log_of(prefect_api, job)
    ours = [one["message"] for one in lines if one["name"].startswith("sluice")]
    assert "step 1 local_import begins" in ours
    assert not [one for one in lines if "Traceback" in one["message"]]


def test_a_failed_job_ends_with_its_error_as_message_and_without_a_traceback(
    sluice: Commands, project: Path, fhir: Fhir, prefect_api: str
) -> None:
    config = project / "config.yaml"
    config.write_text(config.read_text().replace("wait, ", ""))
    fhir.faults({"action": "status", "method": "POST", "status": 403, "times": None})
    failed = sluice("pipeline", "start", "config.yaml")
    assert failed.code == 1
    assert f"pipeline continue {config} {failed.job}" in failed.err
    run = ask_prefect("GET", f"{prefect_api}/flow_runs/{failed.job}")
    assert run["state_type"] == "FAILED"
    assert run["state"]["message"].startswith("send: error[")
    wait_until(lambda: any("Finished in state" in one["message"] for one in log_of(prefect_api, failed.job)), 150)
    assert not [one for one in log_of(prefect_api, failed.job) if "Traceback" in one["message"]]
