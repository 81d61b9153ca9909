"""Every step over its service: what it is given, what it asks, what it makes. The tables of all steps are over these.

Nothing here knows how a step works inside: ``STEP.run(context)`` is called, in this process or in one that is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from config import PipelineConfig
from tasks.shared.report import StepReport
from tasks.shared.step import Handle, HandleStore, Step
from tests.peers import data, job, services
from tests.peers.server import Reply, ScriptedServer, SeenRequest

ATTEMPTS = 3
JsonObject = dict[str, Any]


@dataclass(frozen=True)
class StepCase:
    """A step in one of its modes."""

    step: str
    configured: Callable[[str, Path], JsonObject]
    """``services`` of the configuration, by the URL of the service and a directory for files that it names."""
    answer: Callable[[Path], services.Answer]
    """The service; the path is a directory with data for it."""
    victim: Callable[[SeenRequest], bool]
    """Whether a request is the one that goes wrong: neither the first nor the last that moves data."""
    place: str = ""
    """How an error about that request names it."""
    moves: Callable[[SeenRequest], bool] = lambda seen: seen.method == "POST"
    """Whether a request moves data."""
    made: Callable[[Path, services.Answer], dict[str, bytes]] = lambda _, __: {}
    """What must be there in the end, of the job directory and the service."""
    private: frozenset[str] = frozenset({"failed"})
    """Directories below the job's that may hold data, besides what is read."""
    reads: bool = True
    """Whether it reads what another step has left."""
    renames: bool = True
    """Whether what is finished gets its name then."""

    @property
    def declared(self) -> Step:
        return import_module(f"tasks.{self.step}.step").STEP  # type: ignore[no-any-return]


def files_of(*directories: str) -> Callable[[Path, services.Answer], dict[str, bytes]]:
    """Return what reads all files of these directories of a job."""

    def made(job_dir: Path, _: services.Answer) -> dict[str, bytes]:
        found = [path for name in directories for path in sorted((job_dir / name).rglob("*")) if path.is_file()]
        return {path.relative_to(job_dir).as_posix(): path.read_bytes() for path in found if path.suffix != ".part"}

    return made


def reports(job_dir: Path, _: services.Answer) -> dict[str, bytes]:
    """Return the reports of a validation and their summary."""
    found = [*job_dir.glob("validation/*.validation.ndjson"), job_dir / "validation/summary.csv"]
    return {path.name: path.read_bytes() for path in found if path.exists()}


def stored(_: Path, answer: Any) -> dict[str, bytes]:
    """Return the resources of a FHIR server, a transfer's without its time."""
    return {
        key: json.dumps(json.loads(body) | {"date": None}).encode() if key.startswith("DocumentReference/") else body
        for key, body in answer.resources.items()
    }


def objects(_: Path, answer: Any) -> dict[str, bytes]:
    """Return the objects in the bucket, without the times of the manifest."""
    found = {key: body for key, body in answer.objects.items() if "upload_manifest" not in key}
    assert len(answer.objects) <= len(found) + 1
    return found


def files_in(source: Path) -> dict[str, bytes]:
    """Return the files that a server has."""
    return {path.name: path.read_bytes() for path in sorted(source.iterdir())}


def _is_request(method: str, *parts: str) -> Callable[[SeenRequest], bool]:
    """Accept requests of this method that have one of these in their target or body."""
    return lambda seen: (
        seen.method == method and any(part in seen.target or part.encode() in seen.body for part in parts)
    )


def _fetches(seen: SeenRequest) -> bool:
    return seen.method == "GET" and "ndjson" in seen.target and "range" not in seen.headers


def _lookup(directory: Path) -> str:
    path = directory / "lookup.json"
    path.write_text(json.dumps(data.lookup()))
    return str(path)


TRANSFER = {"project_identifier": "p", "organization_identifier": "o"}
S3 = {"bucket": "bucket", "region": "eu-central-1", "use_path_style": True}
S3 |= {"access_key_id": "AKID", "secret_access_key": "secret-key"}
POLLING = {"polling_interval": "1s", "max_polling_interval": "1s", "file_ready_interval": "10ms"}

CASES = {
    "extractor": StepCase(
        "extractor",
        lambda url, _: {"extractor": {"base_url": url, "max_concurrent_downloads": 1, **POLLING}},
        lambda source: services.extraction(files_in(source)), lambda seen: _fetches(seen) and "batch-1" in seen.target,
        "batch-1", _fetches, files_of("import"), frozenset({"import"}), reads=False,
    ),
    "http_import": StepCase(
        "http_import",
        lambda url, directory: {"http_import": {"urls": [f"{url}/{name}" for name in files_in(directory / "source")]}},
        lambda source: services.download(files_in(source)), lambda seen: _fetches(seen) and "batch-1" in seen.target,
        "batch-1", _fetches, files_of("import"), frozenset({"import"}), reads=False,
    ),
    "local_import": StepCase(
        "local_import", lambda _, directory: {"local_import": {"dir": str(directory / "source")}},
        lambda _: lambda _: Reply(404), lambda _: False, made=files_of("import"), private=frozenset({"import"}),
        reads=False,
    ),
    "pseudonymizer": StepCase(
        "pseudonymizer", lambda url, _: {"pseudonymizer": {"url": url, "max_concurrent_requests": 1}},
        lambda _: services.pseudonymization, _is_request("POST", "batch-1-p1"), "batch-1.ndjson.zst:2",
        moves=lambda seen: seen.method == "POST" and b"sluice-probe" not in seen.body,
        made=files_of("pseudonymized"), private=frozenset({"failed", "pseudonymized"}),
    ),
    "validation": StepCase(
        "validation", lambda url, _: {"validation": {"url": url, "max_concurrent_requests": 1}},
        lambda _: services.validation, _is_request("POST", "batch-1-p1"), "batch-1.ndjson.zst:",
        made=reports, private=frozenset({"failed", "validation", ".state"}),
    ),
    "flattening": StepCase(
        "flattening", lambda url, directory: {"flattening": {"service_url": url, "lookup_path": _lookup(directory)}},
        lambda _: services.flattening, _is_request("POST", '"resource":"Observation"'), "group Observation",
        made=files_of("csv"), private=frozenset({"failed"}),
    ),
    "direct load": StepCase(
        "send",
        lambda url, _: {
            "send": {"send_as": "direct_resource_load", "url": url, "batch_size": 5, "max_concurrent_requests": 1}
        },
        lambda _: services.FhirDouble(), _is_request("POST", "Observation/batch-1-p1-o0"), "batch-1.ndjson.zst:",
        made=stored, renames=False,
    ),
    "transfer": StepCase(
        "send", lambda url, _: {"send": {"send_as": "transfer_load", "url": url, "transfer": TRANSFER}},
        lambda _: services.FhirDouble(), _is_request("PUT", "/Binary/"), "/fhir/Binary/",
        lambda seen: seen.method == "PUT" and "/Binary/" in seen.target, stored,
        renames=False,
    ),
    "S3": StepCase(
        "send", lambda url, _: {"send": {"send_as": "s3_upload", "s3": {**S3, "endpoint": url}}},
        lambda _: services.S3Double(), _is_request("PUT", "batch-1"), "batch-1.ndjson.zst",
        lambda seen: seen.method == "PUT", objects, renames=False,
    ),
}  # fmt: skip


class KeptHandle(HandleStore):
    """The handle of an extraction, in a file: it outlives the process, as the record of a job does."""

    def __init__(self, path: Path) -> None:
        super().__init__(Handle(**json.loads(path.read_text())) if path.exists() else None)
        self._path = path

    def save(self, handle: Handle | None) -> None:
        super().save(handle)
        self._path.unlink(missing_ok=True)
        if handle is not None:
            self._path.write_text(json.dumps({"status_url": handle.status_url, "job_id": handle.job_id}))


class StepPlace:
    """A directory with a job of a step, and what it reads."""

    def __init__(self, name: str, directory: Path) -> None:
        self.case = CASES[name]
        self.job = directory / "job"
        self.source = directory / "source"
        self.directory = directory
        self.input = self.job / "import" if self.case.reads else self.source
        self.job.mkdir(parents=True, exist_ok=True)
        self.context: Any = None

    def fill(self, **options: Any) -> StepPlace:
        data.people(self.input, **options)
        (self.directory / "crtdl.json").write_text(json.dumps(data.crtdl()))
        return self

    def configuration(self, url: str, **more: Any) -> PipelineConfig:
        services = self.case.configured(url, self.directory)
        for name, keys in more.pop("services", {}).items():
            services[name] |= keys
        retry = {"max_attempts": ATTEMPTS, "initial_backoff_ms": 1, "max_backoff_ms": 2}
        return PipelineConfig.model_validate({"services": services, "retry": retry} | more)

    def run(self, url: str, **more: Any) -> StepReport:
        self.context = job.context(
            self.job, self.case.step, self.configuration(url, **more), position=1 + self.case.reads,
            source=self.input if self.case.reads else None,
            crtdl=self.directory / "crtdl.json",
            handle=KeptHandle(self.directory / "handle.json"),
        )  # fmt: skip
        return self.case.declared.run(self.context)

    def serve(self) -> ScriptedServer:
        return ScriptedServer(self.case.answer(self.source))

    def made(self, service: ScriptedServer) -> dict[str, bytes]:
        return self.case.made(self.job, service.answer)


# Processes that are killed

_CHILD = "import sys; from tests.peers.steps import child; child(*sys.argv[1:])"


def start(name: str, directory: Path, url: str, moment: str = "", number: int = 0) -> subprocess.Popen[str]:
    """Start a step in a process of its own: to be killed at a request, or killed at the rename with this number."""
    words = [sys.executable, "-c", _CHILD, name, str(directory), url, moment, str(number)]
    return subprocess.Popen(words, cwd=job.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def child(name: str, directory: str, url: str, moment: str, number: str) -> None:
    """Run a step; kill this process before or after it renames a file of data or of its state."""
    place, left, replace = StepPlace(name, Path(directory)), [int(number)], os.replace

    def renamed(source: Any, target: Any, **more: Any) -> None:
        left[0] -= 1
        if left[0] < 0 and moment == "before the rename":
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target, **more)
        if left[0] < 0 and moment == "after the rename":
            os.kill(os.getpid(), signal.SIGKILL)

    if moment:
        os.replace = renamed
    place.run(url)
    sys.stdout.write(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
