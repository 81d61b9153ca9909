"""``deployments/prefect.yaml``: deployed, started by a worker of a process pool, and the same job to the commands."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT, Commands, ask_prefect, own_name, wait_until
from tests.peers.project import Fhir, many_transactions

pytestmark = pytest.mark.e2e

Json = dict[str, Any]

FILE = ROOT / "deployments" / "prefect.yaml"
HASTY = "import datetime, flows.job.state\nflows.job.state.TAKEN_UP = datetime.timedelta(seconds=5)\n"
"""Code for the start of a worker's processes that take a run for cut off after five seconds, not two minutes."""


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


@contextmanager
def working(sluice: Commands, api: str, pool: str) -> Iterator[None]:
    """Run a plain worker, and stop it as a service manager does."""
    log = sluice.cwd / "worker.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool],
            cwd=sluice.cwd, env=PrefectCommand(sluice, api).environment, stdout=file, stderr=file,
        )  # fmt: skip
    try:
        wait_until(lambda: b"started!" in log.read_bytes(), 120)
        yield
    finally:
        process.terminate()
        process.wait(timeout=120)


def deploy(sluice: Commands, api: str, pool: str, *, named: bool = False) -> None:
    """Deploy the file on this test's pool, with the project as working directory; ``named``: after the pool."""
    document = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    for deployment in document["deployments"]:
        deployment["work_pool"]["name"] = pool
        deployment["work_pool"]["job_variables"]["working_dir"] = str(sluice.cwd)
        if "config" in deployment.get("parameters", {}):
            deployment["parameters"] = {"config": str(sluice.cwd / "config.yaml")}
        if named:
            deployment["name"] += f"-{pool}"
    copy = sluice.cwd / "prefect.yaml"
    copy.write_text(yaml.safe_dump(document))
    prefect = PrefectCommand(sluice, api)
    prefect("work-queue", "create", "nights", "--pool", pool, "--limit", "1")
    prefect("--no-prompt", "deploy", "--prefect-file", str(copy), "--all")


def two_nights(api: str, pool: str) -> list[Json]:
    """Return the first two nights."""
    body = {"work_pool_queues": {"name": {"any_": ["nights"]}}, "work_pools": {"name": {"any_": [pool]}}}
    body |= {"sort": "EXPECTED_START_TIME_ASC", "limit": 2}
    return list(ask_prefect("POST", f"{api}/flow_runs/filter", body))


def schedule_two_nights(api: str, pool: str) -> None:
    """Let two nights begin in some seconds, one after the other. A server that is busy may miss them: then again."""
    url = f"{api}/deployments/{ask_prefect('GET', f'{api}/deployments/name/pipeline/nightly-{pool}')['id']}/schedules"
    for _ in range(5):
        due = datetime.now(UTC) + timedelta(seconds=15)
        nights = [{"interval": 86400, "anchor_date": (due + timedelta(seconds=n)).isoformat()} for n in range(2)]
        ask_prefect("POST", url, [{"schedule": night, "active": True} for night in nights])
        soon = (due + timedelta(minutes=1)).isoformat()
        while datetime.now(UTC) < due + timedelta(seconds=2):
            if sum(night["expected_start_time"] < soon for night in two_nights(api, pool)) == 2:
                return
            time.sleep(0.2)
        for missed in ask_prefect("GET", url):
            ask_prefect("DELETE", f"{url}/{missed['id']}")
    pytest.fail("Prefect schedules nothing")


@pytest.mark.timeout(240)
def test_a_run_of_a_worker_is_the_same_job_to_the_commands(
    sluice: Commands, prefect_api: str, pool: str, project: Path
) -> None:
    deploy(sluice, prefect_api, pool)
    form = ask_prefect("GET", f"{prefect_api}/deployments/name/pipeline/sluice")["parameter_openapi_schema"]
    assert list(form["properties"]) == ["config", "crtdl", "input", "anonymization_config", "patients", "overrides"]
    assert all(parameter["description"] for parameter in form["properties"].values())
    assert form["required"] == ["config"]
    with working(sluice, prefect_api, pool):
        started = sluice("pipeline", "start", "config.yaml", "--detach")
        assert started.code == 0, started.err
        assert started.out == f"job {started.job}\n"
        wait_until(lambda: sluice.status(started.job)["state"] == "waiting", 150)
        approved = sluice.here("pipeline", "continue", "config.yaml", started.job, "--approve")
        assert approved.code == 0, approved.err
        wait_until(lambda: sluice.status(started.job)["state"] == "completed", 150)


@pytest.mark.timeout(600)
def test_a_night_waits_for_the_one_before_which_goes_on_after_its_worker_was_stopped(
    sluice: Commands, prefect_api: str, pool: str, fhir: Fhir, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_transactions(sluice.cwd, fhir.url)
    fhir.faults({"action": "delay", "method": "POST", "times": None, "seconds": 0.5})
    hasty = sluice.cwd / "hasty"
    hasty.mkdir()
    (hasty / "sitecustomize.py").write_text(HASTY)
    sluice.environment["PYTHONPATH"] = f"{hasty}:{ROOT}"
    for module in ("state", "unfinished"):
        monkeypatch.setattr(f"flows.job.{module}.TAKEN_UP", timedelta(seconds=5))
    deploy(sluice, prefect_api, pool, named=True)
    schedule_two_nights(prefect_api, pool)

    def states() -> list[str]:
        return [night["state_type"] for night in two_nights(prefect_api, pool)]

    with working(sluice, prefect_api, pool):
        wait_until(lambda: fhir.count("Patient") > 0, 180)
        assert states() == ["RUNNING", "SCHEDULED"]
    assert states() == ["RUNNING", "SCHEDULED"], "Prefect does not notice that the worker killed it"
    first, second = (night["id"] for night in two_nights(prefect_api, pool))
    fhir.faults()
    with working(sluice, prefect_api, pool):
        wait_until(lambda: sluice.here("job", "unfinished", "config.yaml").code == 1, 150)
        assert states() == ["RUNNING", "SCHEDULED"], "a job that was cut off holds its place"
        PrefectCommand(sluice, prefect_api)("deployment", "run", f"unfinished/unfinished-{pool}")
        wait_until(lambda: states() == ["COMPLETED", "COMPLETED"], 180)
    done = {night["id"]: night for night in two_nights(prefect_api, pool)}
    assert done[first]["end_time"] < done[second]["start_time"]
    assert done[first]["run_count"] == 2
    assert fhir.total() == 91
