"""A delivery in shards of one machine sends what it sends undivided (6-scale-out.md)."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.fhir.app import FhirOptions, fhir_service
from tests.conftest import Commands, wait_until
from tests.flows.shards.site import children, directory_of, reported, the_job
from tests.peers.fhir import bundle, observation, patient_line, resource

pytestmark = pytest.mark.e2e


def write_patients(directory: Path, lines: int) -> None:
    """Write a core file and six files of patients; one patient is in all of them, and one refers to another file."""
    directory.mkdir()
    write: dict[str, list[dict[str, Any]]] = {"core": [resource("Organization", f"org{n}") for n in range(5)]}
    for file in range(6):
        rows = [patient_line(1000 * (file + 1) + n, 4) for n in range(lines)]
        for row in rows:
            row["entry"][1]["resource"]["performer"] = [{"reference": f"Organization/org{file % 5}"}]
        rows.append(bundle(resource("Patient", "all", v=file), observation(f"all{file}")))
        write[f"b{file}"] = rows
    other = observation("other", focus=[{"reference": "Patient/p6000"}])
    write["b0"].append(bundle(resource("Patient", "refers"), other))
    for name, rows in write.items():
        (directory / f"{name}.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))


def configure_load(sluice: Commands, url: str, **pipeline: Any) -> None:
    config = {
        "pipeline": {"enabled_steps": ["local_import", "send"], **pipeline},
        "services": {
            "local_import": {"dir": str(sluice.cwd / "in")},
            "send": {"send_as": "direct_resource_load", "url": url, "batch_size": 10, "max_concurrent_requests": 3},
        },
        "retry": {"initial_backoff_ms": 10},
        "report": {"enabled": False},
    }
    (sluice.cwd / "config.yaml").write_text(yaml.safe_dump(config))


def stored(url: str) -> list[str]:
    return httpx.get(f"{url}/_sandbox/resources").text.splitlines()


def test_a_load_in_shards_stores_and_reports_what_an_undivided_one_does(sluice_process: Commands) -> None:
    sluice = sluice_process
    write_patients(sluice.cwd / "in", 30)
    found = []
    for shards in (1, 3):
        with serve_in_thread(fhir_service(FhirOptions(manners="hapi"))) as server:
            configure_load(sluice, server.url)
            ran = sluice("pipeline", "start", "config.yaml", "--shards", str(shards))
            assert ran.code == 0, ran.err
            report = reported(directory_of(sluice, ran))
            for name in ("requests", "deferred", "collapsed"):
                report["details"].pop(name)
            found.append((stored(server.url), report["resources_in"], report["lines_in"], report["details"]))
            (step,) = (one for one in sluice.status(ran.job)["steps"] if one["name"] == "send")
            assert (step["shards"] or {}).get("done") == (None if shards == 1 else shards)
    assert found[0] == found[1]
    assert len(found[0][0]) == 5 + 6 * 30 * 4 + 1 + 6 + 2


def test_a_load_goes_on_after_a_kill_of_a_child_and_of_the_job(sluice_process: Commands) -> None:
    sluice = sluice_process
    write_patients(sluice.cwd / "in", 150)
    with serve_in_thread(fhir_service(FhirOptions(manners="hapi"))) as server:
        configure_load(sluice, server.url, shards=2)
        started = sluice.start("pipeline", "start", "config.yaml")
        wait_until(lambda: len(stored(server.url)) > 200)
        for child in children(started.pid)[:1]:
            os.kill(child, signal.SIGKILL)
        wait_until(lambda: len(stored(server.url)) > 1500)
        os.kill(started.pid, signal.SIGKILL)
        started.wait()
        job = the_job(sluice)
        ran = sluice.here("pipeline", "continue", "config.yaml", job.name)
        assert ran.code == 0, ran.err
        assert len(stored(server.url)) == 5 + 6 * 150 * 4 + 1 + 6 + 2
