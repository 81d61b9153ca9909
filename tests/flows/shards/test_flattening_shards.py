"""Flattening in shards of one machine (6-scale-out.md)."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
import yaml

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.data import DEMO_CRTDL
from deployments.sandbox.flattening.app import FlatteningOptions, flattening_service
from tests.conftest import Commands
from tests.flows.shards.site import directory_of

pytestmark = pytest.mark.e2e


def test_the_tables_of_the_demo_are_those_of_an_undivided_run(sluice_process: Commands) -> None:
    sluice, found = sluice_process, []
    data = DEMO_CRTDL.parent
    (sluice.cwd / "in").mkdir()
    for path in data.glob("*.ndjson"):
        shutil.copy(path, sluice.cwd / "in")
    with serve_in_thread(flattening_service(FlatteningOptions())) as served:
        flattening = {"service_url": served.url, "lookup_path": str(data / "lookup.json")}
        services = {"local_import": {"dir": "in"}, "flattening": flattening}
        config = {"pipeline": {"enabled_steps": ["local_import", "flattening"]}, "services": services}
        (sluice.cwd / "config.yaml").write_text(yaml.safe_dump(config | {"report": {"enabled": False}}))
        for shards in (1, 3):
            ran = sluice("pipeline", "start", "config.yaml", str(DEMO_CRTDL), "--shards", str(shards))
            assert ran.code == 0, ran.err
            job = directory_of(sluice, ran)
            found.append({path.name: digest_of(path) for path in (job / "csv").iterdir()})
            step = sluice.status(ran.job)["steps"][1]
            assert step["shards"] == (None if shards == 1 else {"total": 3, "done": 3, "running": 0, "failed": 0})
    assert found[0] == found[1]
    assert found[0]


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
