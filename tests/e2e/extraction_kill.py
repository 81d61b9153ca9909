"""A job that extracts from the sandbox extraction server, to be killed anywhere and looked at afterwards.

The server is a process of its own and has more to hand out than a moment's worth. It takes its time by faults: the
answer to the submission comes late, bodies trickle, one is cut. What it was asked is counted by the server itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from deployments.sandbox.child import start_child
from deployments.sandbox.options import SandboxOptions
from tests.conftest import Commands, seed
from tests.deployments.sandbox.extraction.conftest import attribute, crtdl, group
from tests.e2e.test_kill_campaign import DECIMALS, CampaignTrial
from tests.peers.lines import compressed_contents
from tests.peers.sandbox import Sandboxed

OBSERVATIONS, NOTE = 10, 8_000
BATCHES = 10
FILES = BATCHES + 1
"""With ``core.ndjson``."""

QUERY = crtdl(
    group("patients", "Patient", attribute("Patient.gender"), attribute("Patient.birthDate")),
    group(
        "values", "Observation",
        attribute("Observation.code", must=True),
        attribute("Observation.value[x]"),
        attribute("Observation.note"),
        attribute("Observation.performer", "clinics"),
    ),
    group("clinics", "Organization", attribute("Organization.name"), includeReferenceOnly=True),
)  # fmt: skip
"""Everybody, all observations, and the clinics that made them: those are the core file."""


@dataclass(frozen=True)
class NdjsonHospital:
    """A directory of FHIR NDJSON."""

    directory: Path
    patients: int

    @property
    def per_batch(self) -> int:
        return self.patients // BATCHES


def write_hospital(directory: Path, megabytes: float) -> NdjsonHospital:
    """About so much data (10⁶ bytes), for ``BATCHES`` equal batches of patients."""
    directory.mkdir(parents=True)
    patients = max(1, round(megabytes * 1e6 / (BATCHES * OBSERVATIONS * (NOTE + 250)))) * BATCHES
    note = ("Probe kühl gelagert, Wert im Vergleich zur Vorwoche leicht verändert. " * (NOTE // 60))[:NOTE]
    with (directory / "clinics.ndjson").open("w", encoding="utf-8") as file:
        for number in range(20):
            file.write(f'{{"resourceType":"Organization","id":"clinic-{number}","name":"Klinik {number}"}}\n')
    with (directory / "patients.ndjson").open("w", encoding="utf-8") as file:
        for number in range(patients):
            file.write(
                f'{{"resourceType":"Patient","id":"p{number}","gender":"female","birthDate":"19{number % 90 + 10}"}}\n'
            )
            for n in range(OBSERVATIONS):
                file.write(
                    f'{{"resourceType":"Observation","id":"o{number}-{n}","status":"final","code":{{"text":"x"}},'
                    f'"subject":{{"reference":"Patient/p{number}"}},'
                    f'"performer":[{{"reference":"Organization/clinic-{(number + n) % 20}"}}],'
                    f'"valueQuantity":{{"value":{DECIMALS[(number + n) % len(DECIMALS)]},"unit":"mg"}},'
                    f'"note":[{{"text":"{note}"}}]}}\n'
                )
    return NdjsonHospital(directory, patients)


@dataclass(frozen=True)
class FileContent:
    """Content of a file, small enough to be shown."""

    size: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> FileContent:
        return cls(len(content), hashlib.sha256(content).hexdigest())


def contents(directory: Path) -> dict[str, FileContent]:
    """Return the imported files by the server's names."""
    return {name: FileContent.of(content) for name, content in compressed_contents(directory).items()}


@dataclass
class Extractor(Sandboxed):
    """The running sandbox extraction server."""

    cuts: int = 0

    def submissions(self) -> list[dict[str, Any]]:
        return [request for request in self.requests() if request["path"] == "/fhir/$extract-data"]

    def requested_files(self) -> Counter[str]:
        """Count the GET and HEAD requests for each result file."""
        return Counter(_name(request) for request in self.requests() if "/output/" in request["path"])

    def fetched(self) -> Counter[str]:
        """Count the GET requests for each result file."""
        return Counter(
            _name(request)
            for request in self.requests()
            if "/output/" in request["path"] and request["method"] == "GET" and request["path"].endswith(".ndjson")
        )

    def tasks(self) -> list[str]:
        """Return the ids of its jobs."""
        return [entry["resource"]["id"] for entry in self._get("/fhir/Task").json().get("entry", ())]

    def files(self, job: str) -> dict[str, FileContent]:
        """Return a job's result files by name, from plain requests."""
        self.faults()
        urls = [entry["url"] for entry in self._get(f"/fhir/__status/{job}").json()["output"]]
        return {
            url.rpartition("/")[2]: FileContent.of(httpx.get(url, trust_env=False, timeout=60).content) for url in urls
        }

    def slow(self, *, submission: float, megabyte: float, cut: int | None = None) -> None:
        """Seconds until a submission that was carried out is answered, and for each megabyte of a result file.

        ``cut``: the so-manyth download breaks off half-way, once.
        """
        self.cuts += cut is not None
        piece = 1 << 16
        files = {"path": "/output/*.ndjson", "method": "GET"}
        rules: list[dict[str, Any]] = [
            {
                "action": "delay", "at": "applied", "seconds": submission, "path": "/fhir/$extract-data", "times": None,
            },
            {"action": "slow", "bytes": piece, "seconds": megabyte * piece / 1e6, "times": None, **files},
        ]  # fmt: skip
        if cut is not None:
            rules.insert(1, {"action": "cut", "skip": cut, "times": 1, **files})
        self.faults(*rules)

    def _get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", trust_env=False, timeout=60).raise_for_status()


def _name(request: dict[str, Any]) -> str:
    return str(request["path"]).rpartition("/")[2]


@dataclass
class ExtractionTrial(CampaignTrial):
    """One working directory with its extraction server and what was seen in it."""

    server: Extractor
    asked: dict[str, int] = field(default_factory=dict)
    """The requests for a file until it was seen complete."""
    child: subprocess.Popen[bytes] | None = None

    def words(self) -> list[str]:
        """Return the next command: start, or continue."""
        return (
            ["start", "config.yaml", "query.json"] if self.job is None else ["continue", "config.yaml", self.job.name]
        )

    def launch(self) -> subprocess.Popen[bytes]:
        self.child = super().launch()
        return self.child

    def close(self) -> None:
        """End what a failed test has left."""
        if self.child is not None and self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
        self.sluice.close()

    def kill(self, child: subprocess.Popen[bytes]) -> bool:
        """Kill with ``kill -9``; return whether it still ran. A complete file must not be requested again."""
        killed = super().kill(child)
        asked = self.server.requested_files()
        for name in self.complete_files():
            assert self.asked.setdefault(name, asked[name]) == asked[name], f"{name} was asked for again"
        return killed

    def complete_files(self) -> list[str]:
        """Return the names of the files that are complete, as the server calls them."""
        found = self.job.glob("import/*.ndjson.zst") if self.job is not None else ()
        return sorted(path.name.removesuffix(".zst") for path in found)

    def where(self) -> str:
        """Return the progress of the job, for a person."""
        polls = sum("/__status/" in request["path"] for request in self.server.requests())
        return (
            f"{len(self.server.submissions())} submission, {polls} polls, "
            f"{self.server.fetched().total()} downloads begun, {len(self.complete_files())} files complete"
        )

    def state_files(self) -> list[str]:
        """Return the names of the files in the job directory besides the data."""
        assert self.job is not None
        inside = (path.relative_to(self.job) for path in self.job.rglob("*") if path.is_file())
        return sorted(str(path) for path in inside if path.parts[0] != "import")


def check(trial: ExtractionTrial, status: dict[str, Any], hospital: NdjsonHospital, kept: list[str] | None) -> None:
    """Everything that must hold after the job is complete."""
    server = trial.server
    asked, fetched = server.requested_files(), server.fetched()
    assert [request["status"] for request in server.submissions()] == [202]
    assert server.tasks() == [status["extraction"]["job_id"]]
    assert {name: asked[name] for name in trial.asked} == trial.asked, "a complete file was asked for again"
    trial.assert_undamaged()
    assert len(fetched) == FILES
    assert max(fetched.values()) <= 1 + trial.kills + server.cuts
    assert trial.job is not None
    imported = contents(trial.job / "import")
    assert imported == server.files(status["extraction"]["job_id"])
    assert kept is None or trial.state_files() == kept
    (step,) = status["steps"]
    assert (status["state"], step["state"]) == ("completed", "completed")
    # The counts are those of all files, also of those that an earlier process has fetched.
    assert step["files"] == FILES
    assert step["resources_in"] == step["resources_out"] > hospital.patients
    assert step["bytes_in"] == sum(content.size for content in imported.values())
    assert step["bytes_out"] == sum(path.stat().st_size for path in (trial.job / "import").iterdir())


@contextmanager
def trial(
    directory: Path, hospital: NdjsonHospital, database: Path, *, api: str | None = None
) -> Iterator[ExtractionTrial]:
    """Yield a configuration, a query and a server; an embedded Prefect server unless there is ``api``."""
    directory.mkdir(exist_ok=True)
    seed(directory / "jobs", database)
    (directory / "query.json").write_text(json.dumps(QUERY))
    settings = {"batchsize": str(hospital.per_batch), "batch_delay": "0.2"}
    with start_child(SandboxOptions(data=hospital.directory, settings=settings)) as sandbox:
        url = sandbox.urls["extraction"]
        (directory / "config.yaml").write_text(
            f"""
services:
  extractor: {{base_url: "{url}", polling_interval: 1s, max_polling_interval: 1s, file_ready_interval: 50ms}}
pipeline: {{enabled_steps: [extractor]}}
retry: {{max_attempts: 3, initial_backoff_ms: 10, max_backoff_ms: 50}}
jobs_dir: jobs
"""
        )
        job = ExtractionTrial(directory, Commands(directory, api), Extractor(url))
        try:
            yield job
        finally:
            job.close()
