"""A small input for whole runs, the sandbox FHIR server that it goes to, and a job with a wait between both."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import Commands, Ran, ask_prefect
from tests.peers.sandbox import PATIENCE, Sandboxed


def allowed(seconds: float) -> float:
    """A limit of the specification on this machine as it is now: where processes share a processor, so much longer."""
    running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    return seconds * max(1.0, max(os.getloadavg()[0], running) / len(os.sched_getaffinity(0)))


def patient_bundle(number: int) -> dict[str, object]:
    """Return one transaction Bundle: a patient and two observations whose value has a spelling to keep."""
    entries: list[dict[str, object]] = [
        {"resourceType": "Patient", "id": f"p{number}", "name": [{"family": "Umläut", "given": [f"N{number}"]}]}
    ]
    entries += [
        {
            "resourceType": "Observation", "id": f"o{number}-{n}", "status": "final", "code": {"text": "x"},
            "subject": {"reference": f"Patient/p{number}"}, "performer": [{"reference": "Organization/org"}],
            "valueQuantity": {"value": "DECIMAL"},
        }
        for n in range(2)
    ]  # fmt: skip
    return {
        "resourceType": "Bundle", "id": f"b{number}", "type": "transaction",
        "entry": [{"resource": entry, "request": {"method": "PUT", "url": "gone"}} for entry in entries],
    }  # fmt: skip


def write_input(directory: Path, *, patients: int = 6, files: int = 2) -> int:
    """Patient Bundles in ``files`` files and a ``core.ndjson``; returns the number of resources."""
    directory.mkdir(parents=True)
    core = {"resourceType": "Organization", "id": "org", "name": "Klinik"}
    (directory / "core.ndjson").write_text(json.dumps(core) + "\n")
    for file in range(files):
        lines = [json.dumps(patient_bundle(n), ensure_ascii=False) for n in range(file, patients, files)]
        text = "\n".join(lines).replace('"DECIMAL"', "1.50") + "\n"
        (directory / f"batch-{file}.ndjson").write_text(text, encoding="utf-8")
    return 3 * patients + 1


def many_transactions(directory: Path, url: str) -> None:
    """A ``config.yaml`` and its input: local_import → send in many small transactions, one after the other."""
    write_input(directory / "data", patients=30, files=3)
    (directory / "config.yaml").write_text(
        f"""
services:
  local_import: {{dir: data}}
  send: {{send_as: direct_resource_load, url: "{url}", batch_size: 3, max_concurrent_requests: 1}}
pipeline: {{enabled_steps: [local_import, send]}}
retry: {{max_attempts: 2, initial_backoff_ms: 10, max_backoff_ms: 20}}
jobs_dir: jobs
"""
    )


@dataclass
class Fhir(Sandboxed):
    """A running sandbox FHIR server."""

    def count(self, kind: str) -> int:
        """Count its resources of a type."""
        answer = httpx.get(f"{self.url}/fhir/{kind}", params={"_summary": "count"}, trust_env=False, timeout=PATIENCE)
        return int(answer.json()["total"])

    def total(self) -> int:
        """Count the server's resources of the types in the input."""
        return sum(self.count(kind) for kind in ("Organization", "Patient", "Observation"))


class GatedJob:
    """A job of local_import → wait → send, and what people do at its wait."""

    def __init__(self, sluice: Commands, project: Path, fhir: Fhir, api: str) -> None:
        self.sluice, self.project, self.fhir, self.api = sluice, project, fhir, api
        self.config = project / "config.yaml"
        self.job = ""

    def start(self, *words: str, code: int = 0) -> Ran:
        ran = self.sluice("pipeline", "start", "config.yaml", *words)
        assert ran.code == code, ran.err
        self.job = ran.job
        return ran

    def go_on(self, *words: str, code: int = 0) -> Ran:
        ran = self.sluice("pipeline", "continue", "config.yaml", self.job, *words)
        assert ran.code == code, ran.out + ran.err
        return ran

    def resume(self, answer: object) -> str:
        """Answer the wait as in the Prefect UI."""
        return str(ask_prefect("POST", f"{self.run}/resume", {"run_input": answer})["status"])

    def status(self) -> Any:
        return self.sluice.status(self.job)

    def text(self) -> str:
        return self.sluice("pipeline", "status", "config.yaml", self.job).out

    def form(self) -> str:
        keys = ask_prefect("GET", self.run)["state"]["state_details"]["run_input_keyset"]
        return str(ask_prefect("GET", f"{self.run}/input/{keys['description']}"))

    @property
    def run(self) -> str:
        return f"{self.api}/flow_runs/{self.job}"

    @property
    def directory(self) -> Path:
        return self.project / "jobs" / self.job
