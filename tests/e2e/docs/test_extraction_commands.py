"""The commands of the extraction page, each done once against the sandbox extraction server."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.data import DEMO_CRTDL
from deployments.sandbox.extraction.app import ExtractionOptions, extraction_service
from tests.conftest import wait_until
from tests.docs.pages import example
from tests.e2e.docs.place import ExamplePlace
from tests.peers.lines import read_lines

HELD = 3600.0
"""Seconds that a job takes for each of its parts: however busy this machine is, none ends by itself."""


class SandboxExtraction:
    """The sandbox extraction server."""

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(base_url=url, trust_env=False, timeout=60)

    def submit(self) -> str:
        """Submit the demo's query; the status URL."""
        crtdl = base64.b64encode(DEMO_CRTDL.read_bytes()).decode()
        body = {"resourceType": "Parameters", "parameter": [{"name": "crtdl", "valueBase64Binary": crtdl}]}
        answer = self.client.post("/fhir/$extract-data", json=body).raise_for_status()
        return str(httpx.URL(self.client.base_url).join(answer.headers["Content-Location"]))

    def state(self, job: str) -> str:
        task = self.client.get(f"/fhir/Task/{job}").json()
        return str(task["businessStatus"]["coding"][0]["code"])


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SandboxExtraction]:
    delay: float = getattr(request, "param", HELD)
    options = ExtractionOptions(batchsize=1, maxconcurrency=1, batch_delay=delay, state=tmp_path / "extraction-state")
    with serve_in_thread(extraction_service(options)) as served:
        server = SandboxExtraction(served.url)
        with server.client:
            yield server


@pytest.mark.e2e
@pytest.mark.parametrize("server", [0.0], indirect=True)
def test_the_query_that_the_page_shows_is_one(place: ExamplePlace, server: SandboxExtraction) -> None:
    place.save("small.json", example("docs/extraction.md", '{\n  "version": "1"').text)
    assert "All checks passed. The job can start." in place.run("sluice pipeline plan config.yaml small.json")
    assert re.fullmatch(r"[1-9] patients\n", place.run("sluice extraction preview config.yaml small.json"))
    place.run("sluice pipeline start config.yaml small.json")
    imported = place.directory / "jobs" / place.known["job"] / "import"
    lines = [line for file in imported.iterdir() for line in read_lines(file)]
    kinds = {entry["resource"]["resourceType"] for line in lines for entry in json.loads(line)["entry"]}
    assert {"Patient", "Condition", "Encounter"} <= kinds


@pytest.fixture
def place(tmp_path: Path, prefect_api: str, server: SandboxExtraction) -> ExamplePlace:
    place = ExamplePlace(tmp_path, prefect_api, extraction=str(server.client.base_url).rstrip("/"))
    shutil.copy(DEMO_CRTDL, tmp_path / "query.json")
    place.save(
        "config.yaml",
        "services: {extractor: {base_url: https://torch.hospital.example}}\npipeline: {enabled_steps: [extractor]}\n",
    )
    return place


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_the_server_s_jobs_are_looked_at_and_controlled_as_the_page_says(
    place: ExamplePlace, server: SandboxExtraction
) -> None:
    assert place.run("sluice extraction preview config.yaml query.json").endswith(" patients\n")
    place.run("sluice extraction preview config.yaml query.json --ids ids.txt")
    assert (place.directory / "ids.txt").read_text().strip()
    assert (place.directory / "ids.txt").stat().st_mode & 0o777 == 0o600

    job = place.known["extraction_id"] = server.submit().rpartition("/")[2]
    wait_until(lambda: server.state(job).startswith("RUNNING"))
    place.run("sluice extraction pause config.yaml ID")
    assert server.state(job) == "PAUSED"
    assert job in place.run("sluice extraction list config.yaml --status PAUSED")
    assert "PAUSED" in place.run("sluice extraction show config.yaml ID")
    place.run("sluice extraction resume config.yaml ID")
    assert server.state(job).startswith("RUNNING")
    assert "high" in place.run("sluice extraction prioritize config.yaml ID --priority high")
    place.run("sluice extraction cancel config.yaml ID")
    assert server.state(job) == "CANCELLED"
    place.run("sluice extraction delete config.yaml ID")
    assert server.client.get(f"/fhir/Task/{job}").status_code == 404


@pytest.mark.campaign
@pytest.mark.timeout(240)
@pytest.mark.parametrize("server", [0.0], indirect=True)
def test_the_result_of_a_job_that_is_complete_is_imported_by_its_status_url(
    place: ExamplePlace, server: SandboxExtraction
) -> None:
    place.known["status_url"] = server.submit()
    job = place.known["status_url"].rpartition("/")[2]
    wait_until(lambda: server.state(job) == "COMPLETED", 60)
    assert "1 extractor: complete" in place.run("sluice pipeline start config.yaml STATUS-URL")
    status = json.loads(place.run("sluice pipeline status CONFIG JOB --json"))
    assert status["steps"][0]["state"] == "completed"
