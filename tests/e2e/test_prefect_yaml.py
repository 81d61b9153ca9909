"""``deployments/prefect.yaml``: deployed, started by a worker of a process pool, and the same job to the commands."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, Commands, ask_prefect, own_name, wait_until

pytestmark = pytest.mark.e2e

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


def deploy(
    sluice: Commands, api: str, pool: str, working_dir: str | None = None, *, suffix: str | None = None
) -> dict[str, dict[str, object]]:
    """Deploy the file on this test's pool; the deployments as the API has them."""
    document = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    for deployment in document["deployments"]:
        deployment["work_pool"] = {"name": pool, "job_variables": {"working_dir": working_dir}}
        deployment["name"] += f"-{own_name(sluice.cwd)}" if suffix is None else suffix
    copy = sluice.cwd / "prefect.yaml"
    copy.write_text(yaml.safe_dump(document))
    PrefectCommand(sluice, api)("--no-prompt", "deploy", "--prefect-file", str(copy), "--all")
    found = {}
    for deployment in document["deployments"]:
        known = ask_prefect("GET", f"{api}/deployments/name/pipeline/{deployment['name']}")
        found[deployment["name"].removesuffix(f"-{own_name(sluice.cwd)}")] = known
    return found


@pytest.mark.timeout(240)
def test_a_run_of_a_worker_is_the_same_job_to_status_list_and_continue(
    sluice: Commands, prefect_api: str, pool: str, worker: subprocess.Popen[bytes], project: Path
) -> None:
    deployment = deploy(sluice, prefect_api, pool, str(project))["sluice"]
    parameters = {"config": str(project / "config.yaml"), "input": str(project / "data")}
    create = f"{prefect_api}/deployments/{deployment['id']}/create_flow_run"
    run = ask_prefect("POST", create, {"parameters": parameters})["id"]

    wait_until(lambda: sluice.status(run)["state"] == "waiting", 90)
    assert [row["id"] for row in json.loads(sluice("job", "list", "config.yaml", "--json").out)] == [run]
    approved = sluice("pipeline", "continue", "config.yaml", run, "--approve")
    assert approved.code == 0, approved.err
    wait_until(lambda: sluice.status(run)["state"] == "completed", 90)


@pytest.mark.timeout(120)
def test_the_deployments_are_what_the_file_says(sluice: Commands, prefect_api: str, pool: str) -> None:
    found = deploy(sluice, prefect_api, pool)
    nightly = found["nightly"]
    (schedule,) = nightly["schedules"]
    assert schedule["schedule"]["timezone"] == "Europe/Berlin"
    assert not schedule["active"]
    assert nightly["global_concurrency_limit"]["limit"] == 1
    assert nightly["concurrency_options"]["collision_strategy"] == "ENQUEUE"
    assert "sluice" in nightly["tags"]
    assert found["sluice"]["global_concurrency_limit"] is None, "it would count the runs of all machines together"
    properties = found["sluice"]["parameter_openapi_schema"]["properties"]
    assert list(properties) == ["config", "crtdl", "input", "anonymization_config", "patients", "overrides", "shard"]
    assert all(parameter["description"] for parameter in properties.values())
    assert found["sluice"]["parameter_openapi_schema"]["required"] == ["config"]
    assert not found["sluice"]["pull_steps"]


@pytest.mark.timeout(240)
def test_a_relative_jobs_dir_of_a_worker_is_refused_before_anything_is_written(
    sluice: Commands, prefect_api: str, pool: str, worker: subprocess.Popen[bytes], project: Path
) -> None:
    deployment = deploy(sluice, prefect_api, pool)["sluice"]
    parameters = {"config": str(project / "config.yaml"), "input": str(project / "data")}
    create = f"{prefect_api}/deployments/{deployment['id']}/create_flow_run"
    run = ask_prefect("POST", create, {"parameters": parameters})["id"]

    def state() -> dict[str, str]:
        return dict(ask_prefect("GET", f"{prefect_api}/flow_runs/{run}")["state"])

    wait_until(lambda: state()["type"] == "FAILED", 90)
    assert "jobs-dir-scratch" in state()["message"]


@pytest.mark.timeout(240)
def test_detach_hands_the_run_to_the_deployment_named_sluice_and_returns(
    sluice: Commands, prefect_api: str, pool: str, worker: subprocess.Popen[bytes], project: Path
) -> None:
    deploy(sluice, prefect_api, pool, str(project), suffix="")
    started = sluice("pipeline", "start", "config.yaml", "--detach")
    assert started.code == 0, started.err
    assert started.out == f"job {started.job}\n"

    wait_until(lambda: sluice.status(started.job)["state"] == "waiting", 90)
    assert sluice("pipeline", "continue", "config.yaml", started.job, "--approve").code == 0
    wait_until(lambda: sluice.status(started.job)["state"] == "completed", 90)
