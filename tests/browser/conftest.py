"""Fixtures for tests of the Prefect UI: a browser, a served deployment and slow sandbox services."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.fhir.app import FhirOptions, fhir_service
from deployments.sandbox.pseudonymization.app import pseudonymization_service
from flows.engine.api_address import ApiAddress
from flows.engine.server.proof import sign_in_link
from tests.conftest import Commands, wait_until
from tests.peers.sandbox import Sandboxed

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.browser.ui import Ui

CANARIES = ("Canaryname", "Canarygiven", "canary-patient", "CANARY-4711", "Canarystreet")
"""Made-up person data of the input: none of it may be on any page."""

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium as the machine has it; nothing is downloaded."""
    from playwright import sync_api as playwright

    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        found = driver.chromium.launch(executable_path=CHROMIUM, args=[*options, "--disable-dev-shm-usage"])
        yield found
        found.close()


@dataclass
class BrowserSite:
    """A deployment that this machine serves, and the services its jobs talk to."""

    commands: Commands
    api: str
    deployment: str
    urls: dict[str, str]

    @property
    def directory(self) -> Path:
        """Directory of configurations, input and jobs."""
        return self.commands.cwd

    def configuration(self, name: str, *steps: str) -> Path:
        """Write a configuration with these steps."""
        path = self.directory / f"{name}.yaml"
        path.write_text(
            f"""
services:
  local_import: {{dir: "{self.directory}/data"}}
  pseudonymizer: {{url: "{self.urls["pseudonymizer"]}"}}
  send:
    send_as: direct_resource_load
    url: "{self.urls["fhir"]}"
    batch_size: 3
    max_concurrent_requests: 1
pipeline: {{enabled_steps: [{", ".join(steps)}]}}
retry: {{max_attempts: 3, initial_backoff_ms: 10, max_backoff_ms: 20}}
jobs_dir: "{self.directory}/jobs"
"""
        )
        return path

    def faults(self, service: str, *rules: dict[str, Any]) -> None:
        """Inject faults; without any, none."""
        Sandboxed(self.urls[service]).faults(*rules)

    def posts(self) -> int:
        """Count the transactions that the FHIR server has received."""
        return len(Sandboxed(self.urls["fhir"]).posts())

    def listed(self, config: Path) -> dict[str, str]:
        """Return the jobs and their states from ``job list``."""
        shown = self.commands("job", "list", config, "--json")
        assert shown.code == 0, shown.err
        return {row["id"]: row["state"] for row in json.loads(shown.out)}

    def log(self, job: str) -> str:
        """Return the job's log."""
        return (self.directory / "jobs" / job / "job.log").read_text()


def write_patients(directory: Path, *, files: int = 3, patients: int = 6) -> int:
    """Write Bundles of patients with canaries as name, identifier, id and address; count the resources."""
    directory.mkdir(parents=True)
    number = 0
    for file in range(files):
        lines = []
        for _ in range(patients):
            number += 1
            patient = {
                "resourceType": "Patient", "id": f"canary-patient-{number}",
                "identifier": [{"system": "http://hospital.example/patient", "value": f"CANARY-4711-{number}"}],
                "name": [{"family": f"Canaryname{number}", "given": ["Canarygiven"]}],
                "address": [{"line": [f"Canarystreet {number}"]}],
            }  # fmt: skip
            observation = {
                "resourceType": "Observation", "id": f"o{number}", "status": "final", "code": {"text": "x"},
                "subject": {"reference": f"Patient/canary-patient-{number}"},
            }  # fmt: skip
            entries = [
                {"resource": one, "request": {"method": "PUT", "url": f"{one['resourceType']}/{one['id']}"}}
                for one in (patient, observation)
            ]
            lines.append(
                json.dumps({"resourceType": "Bundle", "id": f"b{number}", "type": "transaction", "entry": entries})
            )
        (directory / f"batch-{file}.ndjson").write_text("\n".join(lines) + "\n")
    return 2 * number


RESOURCES = 36
"""How many ``write_patients`` writes."""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, prefect_api: str, browser: Browser) -> Iterator[BrowserSite]:
    """``python -m deployments.serve`` against the shared Prefect server, for all tests here."""
    directory = tmp_path_factory.mktemp("site")
    assert write_patients(directory / "data") == RESOURCES
    commands = Commands(directory, prefect_api)
    quick = {"PREFECT_RUNNER_POLL_FREQUENCY": "1", "PYTHONUNBUFFERED": "1"}
    log = directory / "serve.log"
    with ExitStack() as stack:
        services = {
            "pseudonymizer": pseudonymization_service(),
            "fhir": fhir_service(FhirOptions(state=directory / "fhir-state")),
        }
        urls = {name: stack.enter_context(serve_in_thread(service)).url for name, service in services.items()}
        process = subprocess.Popen(
            [sys.executable, "-m", "deployments.serve", "--name", "sluice-ui"],
            cwd=directory, env=commands.environment | quick, stdout=stack.enter_context(log.open("wb")),
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            wait_until(lambda: "serving pipeline/" in log.read_text(), 120)
            yield BrowserSite(commands, prefect_api, "sluice-ui", urls)
        finally:
            process.terminate()
            process.wait(timeout=60)
            commands.close()


def link(api: str) -> str:
    """Return the link that ``server status`` prints."""
    return sign_in_link(ApiAddress(api).ui, os.environ["PREFECT_API_AUTH_STRING"])


@pytest.fixture
def ui(browser: Browser, site: BrowserSite, tmp_path: Path) -> Iterator[Ui]:
    """Yield a tab of the browser. No page may show a person's data, and none may need another host."""
    from tests.browser.ui import Ui

    for service in site.urls:
        site.faults(service)
    with browser.new_context(viewport={"width": 1400, "height": 1000}) as context:
        tab = Ui(context.new_page(), ApiAddress(site.api).ui, tmp_path)
        tab.sign_in(link(site.api))
        yield tab
        tab.read("last")
    shown = "\n".join(tab.texts)
    assert [canary for canary in CANARIES if canary.lower() in shown.lower()] == []
    assert tab.elsewhere == []
