"""Several workers, machines and jobs at one Prefect server, and a server that reaches nothing (4-product.md §6)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from flows.engine.api import PrefectApi
from flows.engine.flow_runs import run_deployment
from flows.engine.server.start import EmbeddedServer
from flows.job.running.proof import LeaseTimes
from tests.conftest import ROOT, Commands, address_of, wait_until
from tests.e2e.machines import WorkerProcess, other_machine, two_workers
from tests.peers.bridge import Bridge, bridge
from tests.peers.postgres import postgres_running
from tests.peers.project import Fhir, many_transactions, write_input

pytestmark = pytest.mark.e2e

JOBS_AT_ONCE = 20
TRANSACTIONS = 10 + 10 + 10 + 1
"""Of ``import_and_send``: 30 resources a file, 3 a transaction, and the one of ``core.ndjson``."""


@pytest.fixture
def between(fhir: Fhir) -> Iterator[Bridge]:
    """Yield the bridge between the runs and the FHIR server."""
    with bridge(fhir.url) as made:
        yield made


@pytest.fixture
def import_and_send(tmp_path: Path, between: Bridge) -> Path:
    """local_import → send in many small transactions, one after the other."""
    many_transactions(tmp_path, between.url)
    return tmp_path


def killed_in_the_middle_of_send(
    sluice: Commands, api: str, between: Bridge, one: WorkerProcess, two: WorkerProcess, deployed: str
) -> tuple[str, WorkerProcess]:
    """Start a run, let whoever takes it send a few transactions, kill that machine; the job and who is left.

    The next transaction is held until then: the middle of the step is sure.
    """
    between.hold("POST", after=5)
    with PrefectApi(address_of(api)) as prefect:
        job = run_deployment(prefect, deployed, {"config": str(sluice.cwd / "config.yaml")})
    wait_until(lambda: between.held == 1, 90)
    first, second = (one, two) if one.runs else (two, one)
    assert first.runs
    assert not second.runs
    first.die()
    between.release()
    return job, second


def nothing_twice(fhir: Fhir, directory: Path) -> None:
    """Every resource is there, and no transaction came twice: the one that was under way was held on its way."""
    assert fhir.total() == 91
    log = (directory / "job.log").read_text()
    assert log.count("step 1 local_import begins") == 1
    assert log.count("step 1 local_import is complete") == 1
    assert log.count("step 2 send is complete") == 1
    assert log.count("step 2 send begins") == 2
    assert len(fhir.posts()) == TRANSACTIONS


@pytest.mark.timeout(240)
def test_another_worker_continues_a_step_of_a_killed_worker_and_repeats_nothing(
    sluice: Commands, prefect_api: str, import_and_send: Path, fhir: Fhir, between: Bridge
) -> None:
    with two_workers(sluice, prefect_api, {}, {}) as workers:
        job, second = killed_in_the_middle_of_send(sluice, prefect_api, between, *workers)
        wait_until(lambda: sluice.status(job)["state"] == "interrupted", 60)
        assert sluice.here("pipeline", "continue", "config.yaml", job).code == 0
        wait_until(lambda: sluice.status(job)["state"] == "completed", 90)
        wait_until(lambda: second.submitted_runs > 0)  # it says so in its own time
        assert second.submitted_runs == 1
    nothing_twice(fhir, import_and_send / "jobs" / job)


@pytest.mark.campaign
@pytest.mark.timeout(400)
def test_after_the_death_of_a_machine_the_run_goes_on_at_another_within_the_lease(
    sluice: Commands, prefect_api: str, import_and_send: Path, fhir: Fhir, between: Bridge
) -> None:
    """The commands are on the machine of the one that lives, whichever that is."""
    other = other_machine(sluice.cwd / "other-machine")
    with two_workers(sluice, prefect_api, {}, other) as workers:
        job, second = killed_in_the_middle_of_send(sluice, prefect_api, between, *workers)
        died = time.monotonic()
        went_on = sluice("pipeline", "continue", "config.yaml", job, env=second.environment)
        taken = time.monotonic() - died
        assert went_on.code == 0, went_on.err
        assert taken >= LeaseTimes().lease
        wait_until(lambda: sluice.status(job)["state"] == "completed", 90)
        wait_until(lambda: second.submitted_runs > 0)  # it says so in its own time
        assert second.submitted_runs == 1
        print(f"continued elsewhere {taken:.0f} s after the death")
    nothing_twice(fhir, import_and_send / "jobs" / job)


def twenty_jobs(sluice: Commands, project: Path, fhir: Fhir) -> str:
    """Start ``JOBS_AT_ONCE`` jobs at the same moment; all complete, none lost. What it took, in one line."""
    text = (project / "config.yaml").read_text().replace("[local_import, wait, send]", "[local_import, send]")
    (project / "config.yaml").write_text(text)
    begun = time.monotonic()
    children = [sluice.start("pipeline", "start", "config.yaml", "--no-progress") for _ in range(JOBS_AT_ONCE)]
    ended = []
    for child in children:
        out, err = child.communicate(timeout=600)
        assert child.returncode == 0, err
        assert "locked" not in out + err
        ended.append(out.split()[1])
    seconds = time.monotonic() - begun
    rows = json.loads(sluice("job", "list", "config.yaml", "--json").out)
    assert sorted(row["id"] for row in rows) == sorted(set(ended))
    assert len(rows) == JOBS_AT_ONCE
    assert {row["state"] for row in rows} == {"completed"}
    assert fhir.total() == 19
    for log in (project / "jobs").glob("*/job.log"):
        assert "locked" not in log.read_text()
        assert "not recorded" not in log.read_text()
    return f"{JOBS_AT_ONCE} jobs at once: {seconds:.1f} s, {seconds / JOBS_AT_ONCE:.2f} s a job"


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_twenty_jobs_at_once_on_the_embedded_server(sluice_alone: Commands, project: Path, fhir: Fhir) -> None:
    print("SQLite:", twenty_jobs(sluice_alone, project, fhir))
    assert "database is locked" not in (project / "jobs/.prefect/server.log").read_text()


@pytest.fixture
def postgres() -> Iterator[str]:
    """Yield a PostgreSQL of its own; the address for Prefect."""
    if shutil.which("initdb") is None:
        pytest.skip("PostgreSQL is not installed")
    with postgres_running() as made:
        yield made.url


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_twenty_jobs_at_once_on_a_server_with_postgresql_and_a_login(
    tmp_path: Path, postgres: str, project: Path, fhir: Fhir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", postgres)
    with EmbeddedServer(tmp_path / "server") as server:
        commands = Commands(tmp_path, server.address().url)
        commands.environment["PREFECT_API_AUTH_STRING"] = str(server.address().secret)
        try:
            assert (
                httpx.post(f"{server.address().url}/flow_runs/filter", trust_env=False, timeout=60).status_code == 401
            )
            print("PostgreSQL:", twenty_jobs(commands, project, fhir))
        finally:
            commands.close()


ALONE = """
import subprocess, sys
from pathlib import Path
from deployments.sandbox.fhir.app import FhirOptions, fhir_service
from deployments.sandbox.common.serve import serve_in_thread
from tests.peers.project import Fhir
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
with serve_in_thread(fhir_service(FhirOptions(state=Path("fhir-state")))) as served:
    text = Path("config.yaml").read_text()
    Path("config.yaml").write_text(text.replace("FHIR", served.url))
    ran = subprocess.run([sys.executable, "-m", "flows.run", "pipeline", "start", "config.yaml"])
    print("resources", Fhir(served.url).total())
sys.exit(ran.returncode)
"""


def only_loopback() -> bool:
    """Return whether this machine allows a network namespace."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    made = subprocess.run(["unshare", "-rn", "ip", "link", "set", "lo", "up"], capture_output=True)
    return made.returncode == 0


@pytest.mark.skipif(not only_loopback(), reason="this machine allows no network namespace")
def test_a_whole_run_with_the_embedded_server_works_where_there_is_only_loopback(
    sluice_alone: Commands, tmp_path: Path
) -> None:
    write_input(tmp_path / "data")
    (tmp_path / "config.yaml").write_text(
        """
services:
  local_import: {dir: data}
  send: {send_as: direct_resource_load, url: "FHIR"}
pipeline: {enabled_steps: [local_import, send]}
jobs_dir: jobs
"""
    )
    ran = subprocess.run(
        ["unshare", "-rn", sys.executable, "-c", ALONE],
        cwd=tmp_path, env=sluice_alone.environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "is complete" in ran.stdout
    assert "resources 19" in ran.stdout
    log = (tmp_path / "jobs/.prefect/server.log").read_text()
    assert not re.search(r"unreachable|Name or service|resolution|ConnectError", log), log
