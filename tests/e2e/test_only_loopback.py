"""A machine that reaches nothing but itself runs a job."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, Commands
from tests.peers.project import write_input

pytestmark = pytest.mark.e2e

ALONE = """
import subprocess, sys
from pathlib import Path
from deployments.sandbox.fhir.app import fhir_service
from deployments.sandbox.serve import serve_in_thread
from tests.peers.project import Fhir
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
with serve_in_thread(fhir_service(state=Path("fhir-state"))) as served:
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
