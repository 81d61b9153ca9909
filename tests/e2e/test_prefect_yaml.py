"""``deployments/prefect.yaml``: deployed, started by a worker of a process pool, and the same job to the commands."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT, Commands, ask_prefect, own_name, wait_until

pytestmark = pytest.mark.e2e

Json = dict[str, Any]

FILE = ROOT / "deployments" / "prefect.yaml"


class PrefectCommand:
    """Prefect's own command line against the shared server, in a directory that is not the project's."""

    def __init__(self, sluice: Commands, api: str) -> None:
        self.cwd = sluice.cwd
        # A worker looks for runs every ten seconds otherwise.
        quick = {"PREFECT_WORKER_QUERY_SECONDS": "1", "PREFECT_WORKER_HEARTBEAT_SECONDS": "5"}
        self.environment = sluice.environment | quick | {"PREFECT_API_URL": api, "PYTHONUNBUFFERED": "1"}

    def __call__(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "prefect", *words], cwd=self.cwd, env=self.environment, capture_output=True,
            text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def pool(sluice: Commands, prefect_api: str) -> str:
    name = f"pool-{own_name(sluice.cwd)}"
    PrefectCommand(sluice, prefect_api)("work-pool", "create", name, "--type", "process")
    return name


@pytest.fixture
def worker(sluice: Commands, prefect_api: str, pool: str) -> Iterator[subprocess.Popen[bytes]]:
    log = sluice.cwd / "worker.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool],
            cwd=sluice.cwd, env=PrefectCommand(sluice, prefect_api).environment, stdout=file, stderr=file,
        )  # fmt: skip
        wait_until(lambda: b"started!" in log.read_bytes(), 120)
        yield process
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


def deploy(sluice: Commands, api: str, pool: str) -> dict[str, Json]:
    """Deploy the file on this test's pool, with the project as working directory; the deployments by their names."""
    document = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    for deployment in document["deployments"]:
        deployment["work_pool"] = {"name": pool, "job_variables": {"working_dir": str(sluice.cwd)}}
    copy = sluice.cwd / "prefect.yaml"
    copy.write_text(yaml.safe_dump(document))
    PrefectCommand(sluice, api)("--no-prompt", "deploy", "--prefect-file", str(copy), "--all")
    names = [deployment["name"] for deployment in document["deployments"]]
    return {name: ask_prefect("GET", f"{api}/deployments/name/pipeline/{name}") for name in names}


def check(found: dict[str, Json]) -> None:
    """The deployments are what the file says."""
    nightly = found["nightly"]
    (schedule,) = nightly["schedules"]
    assert schedule["schedule"]["timezone"] == "Europe/Berlin"
    assert not schedule["active"]
    assert nightly["global_concurrency_limit"]["limit"] == 1
    assert nightly["concurrency_options"]["collision_strategy"] == "ENQUEUE"
    assert "sluice" in nightly["tags"]
    assert found["sluice"]["global_concurrency_limit"] is None, "it would count the runs of all machines together"
    properties = found["sluice"]["parameter_openapi_schema"]["properties"]
    assert list(properties) == ["config", "crtdl", "input", "anonymization_config", "patients", "overrides"]
    assert all(parameter["description"] for parameter in properties.values())
    assert found["sluice"]["parameter_openapi_schema"]["required"] == ["config"]
    assert not found["sluice"]["pull_steps"]


@pytest.mark.timeout(240)
def test_a_run_of_a_worker_is_the_same_job_to_the_commands(
    sluice: Commands, prefect_api: str, pool: str, worker: subprocess.Popen[bytes], project: Path
) -> None:
    """``--detach`` hands it to the deployment named sluice. One without a working directory is refused."""
    found = deploy(sluice, prefect_api, pool)
    check(found)
    started = sluice("pipeline", "start", "config.yaml", "--detach")
    assert started.code == 0, started.err
    assert started.out == f"job {started.job}\n"
    wait_until(lambda: sluice.status(started.job)["state"] == "waiting", 90)
    assert [row["id"] for row in json.loads(sluice.here("job", "list", "config.yaml", "--json").out)] == [started.job]
    approved = sluice.here("pipeline", "continue", "config.yaml", started.job, "--approve")
    assert approved.code == 0, approved.err
    wait_until(lambda: sluice.status(started.job)["state"] == "completed", 90)

    deployment = f"{prefect_api}/deployments/{found['sluice']['id']}"
    ask_prefect("PATCH", deployment, {"job_variables": {"working_dir": None}})
    parameters = {"config": str(project / "config.yaml"), "input": str(project / "data")}
    run = ask_prefect("POST", f"{deployment}/create_flow_run", {"parameters": parameters})["id"]

    def state() -> dict[str, str]:
        return dict(ask_prefect("GET", f"{prefect_api}/flow_runs/{run}")["state"])

    wait_until(lambda: state()["type"] == "FAILED", 90)
    assert "jobs-dir-scratch" in state()["message"]
    assert not (project / "jobs" / run).exists()
