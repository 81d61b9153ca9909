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

from flows.engine.server.start import EmbeddedServer
from tests.conftest import ROOT, Commands
from tests.peers.postgres import postgres_running
from tests.peers.project import Fhir, write_input

pytestmark = pytest.mark.e2e

JOBS_AT_ONCE = 20


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
