"""Fake extraction servers, in memory for the step, over a socket for commands and runs; and jobs of the step."""

from __future__ import annotations

import base64
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from config import PipelineConfig
from tasks.extractor.client import ExtractionClient
from tasks.extractor.extraction import run
from tasks.shared.http.client import ServiceClient
from tasks.shared.step import Handle, HandleStore, StepContext
from tests.peers import job
from tests.peers.client import client
from tests.peers.server import Raw, Reply, SeenRequest, loopback
from tests.peers.services import JOB, as_json, task

BASE = "https://torch.example"
OTHER_JOB = "22222222-2222-4222-8222-222222222222"
BUNDLE = (
    b'{"resourceType":"Bundle","type":"transaction","entry":[{"resource":{"resourceType":"Basic"}}],"total":1.50}\n'
)
PATIENT_GROUP = {
    "id": "g-pat",
    "name": "Patients",
    "groupReference": "http://hl7.org/fhir/StructureDefinition/Patient",
    "attributes": [{"attributeRef": "Patient.birthDate", "mustHave": False}],
}
GENDER = {
    "context": {"system": "fdpg.mii.cds", "code": "Patient", "display": "Patient"},
    "termCodes": [{"system": "http://snomed.info/sct", "code": "263495000", "display": "Gender"}],
    "valueFilter": {
        "type": "concept",
        "selectedConcepts": [{"system": "http://hl7.org/fhir/administrative-gender", "code": "female", "display": "F"}],
    },
}


def crtdl(**changes: Any) -> dict[str, Any]:
    """Return a CRTDL with one Patient group."""
    document: dict[str, Any] = {
        "version": "1",
        "display": "",
        "cohortDefinition": {"version": "2", "inclusionCriteria": [[GENDER]]},
        "dataExtraction": {"attributeGroups": [PATIENT_GROUP]},
    }
    return document | changes


class SimulatedClock:
    """Simulated seconds; sleeping moves them on and is remembered."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.now += seconds
            self.sleeps.append(seconds)


Answer = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


def running(text: str = "", **headers: str) -> httpx.Response:
    issue = {"severity": "information", "code": "informational", "diagnostics": text}
    return httpx.Response(202, json={"resourceType": "OperationOutcome", "issue": [issue]}, headers=headers)


def manifest(*urls: str, **more: Any) -> httpx.Response:
    outputs = [{"type": "NDJSON Bundle", "url": url} for url in urls]
    return httpx.Response(200, json={"requiresAccessToken": False, "output": outputs, "error": []} | more)


def job_extensions(document: Any, *patients: str, job_id: str = JOB) -> list[dict[str, Any]]:
    """Return the extensions of a manifest whose job got this query."""
    return _extension(job_id, {"crtdl": document, "patient": list(patients)})


def _extension(job_id: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    about = {"id": job_id, "status": "COMPLETED", "parameters": parameters}
    return [{"url": "https://example.org/StructureDefinition/extractor-job", "valueObject": about}]


@dataclass
class MockExtraction:
    """Answers by path; ``polls`` are given one after the other, the last one for ever; ``results`` are those of single
    jobs, for ever.
    """

    polls: list[Answer] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    tasks: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Answer] = field(default_factory=dict)
    submit: Answer | None = None
    locations: list[str] = field(default_factory=lambda: [f"{BASE}/fhir/__status/{JOB}"])
    file: Callable[[httpx.Request], httpx.Response | None] = lambda _: None
    seen: list[httpx.Request] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        with self.lock:
            self.seen.append(request)
            return self._answer(request)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path.endswith("/fhir/$extract-data"):
            if self.submit is not None:
                return make_response(self.submit, request)
            location = self.locations[min(len(self.submissions), len(self.locations)) - 1]
            return httpx.Response(202, headers={"Content-Location": location})
        if (result := self.results.get(path.rpartition("/")[2])) is not None and "/__status/" in path:
            return make_response(result, request)
        if "/__status/" in path or "/fhir/result/" in path:
            return make_response(self.polls.pop(0) if len(self.polls) > 1 else self.polls[0], request)
        if "/fhir/Task" in path:
            return self._task(path.partition("/fhir/Task")[2].strip("/"))
        special = self.file(request)
        if special is not None:
            return special
        content = self.files.get(str(request.url).partition("?")[0])
        if content is None:
            return httpx.Response(404)
        if request.method == "HEAD":
            return httpx.Response(200, headers={"Content-Length": str(len(content))})
        return httpx.Response(200, content=content)

    def _task(self, job_id: str) -> httpx.Response:
        if not job_id:
            bundle = {"resourceType": "Bundle", "entry": [{"resource": task} for task in self.tasks.values()]}
            return httpx.Response(200, json=bundle)
        found = self.tasks.get(job_id)
        if isinstance(found, httpx.Response):
            return found
        outcome = {"resourceType": "OperationOutcome", "issue": []}
        return httpx.Response(200, json=found) if found else httpx.Response(404, json=outcome)

    def requests(self, method: str, part: str) -> list[httpx.Request]:
        return [request for request in self.seen if request.method == method and part in str(request.url)]

    @property
    def submissions(self) -> list[httpx.Request]:
        return self.requests("POST", "$extract-data")

    def downloads(self, part: str = "") -> list[str]:
        found = [request for request in self.seen if request.method == "GET" and "range" not in request.headers]
        return [str(r.url) for r in found if part in str(r.url) and "/fhir/Task" not in str(r.url)]


def make_response(answer: Answer, request: httpx.Request) -> httpx.Response:
    if isinstance(answer, Exception):
        raise answer
    if isinstance(answer, httpx.Response):
        # A fresh copy: an answer may be given more than once.
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)
    return answer(request)


def configuration(base_url: str = BASE, *, compression: bool = False, **extractor: Any) -> PipelineConfig:
    retry = {"max_attempts": 3, "initial_backoff_ms": 0, "max_backoff_ms": 0}
    services = {"extractor": {"base_url": base_url} | extractor}
    return job.configuration(services, retry=retry, compression={"enabled": compression})


def http_client(server: Callable[[httpx.Request], httpx.Response], config: PipelineConfig) -> ServiceClient:
    extractor = config.services.extractor
    return client(
        "extractor",
        retry=config.retry,
        auth=extractor.auth,
        credentials_origin=extractor.base_url,
        transport=httpx.MockTransport(server),
    )


def extraction_client(server: Callable[[httpx.Request], httpx.Response], base_url: str = BASE) -> ExtractionClient:
    return ExtractionClient(http_client(server, configuration(base_url)), base_url)


class RecordingStore(HandleStore):
    """A handle store that remembers everything that was saved."""

    def __init__(self, handle: Handle | None = None) -> None:
        super().__init__(handle)
        self.saved: list[Handle | None] = []

    def save(self, handle: Handle | None) -> None:
        self.saved.append(handle)
        super().save(handle)


@dataclass
class ExtractorJob:
    """A job directory with a CRTDL, and the step in it."""

    path: Path
    server: MockExtraction
    config: PipelineConfig = field(default_factory=configuration)
    store: RecordingStore = field(default_factory=RecordingStore)
    clock: SimulatedClock = field(default_factory=SimulatedClock)
    input: str | None = None
    patients: Path | None = None

    def __post_init__(self) -> None:
        self.path.mkdir(exist_ok=True)
        self.crtdl = self.path / "crtdl.json"
        self.crtdl.write_text(json.dumps(crtdl()))
        self.context = self.new_context()

    def new_context(self) -> StepContext:
        crtdl = None if self.input else self.crtdl
        more = {"input": self.input, "crtdl": crtdl, "patients": self.patients, "handle": self.store}
        return job.context(self.path, "extractor", self.config, **more)

    def run(self) -> Any:
        self.context = self.new_context()
        return run(
            self.context,
            client=lambda config, _: http_client(self.server, config),
            clock=self.clock,
            sleep=self.clock.sleep,
        )

    def imported(self) -> dict[str, bytes]:
        directory = self.path / "import"
        return {path.name: path.read_bytes() for path in sorted(directory.iterdir())} if directory.exists() else {}


def bundles(name: str, count: int) -> bytes:
    """Lines whose decimals have a spelling to keep."""
    lines = [
        f'{{"resourceType":"Bundle","id":"{name}-{n}","type":"transaction","entry":[{{"resource":'
        f'{{"resourceType":"Patient","id":"{name}-{n}","x":1.50}}}}]}}'
        for n in range(count)
    ]
    return ("\n".join(lines) + "\n").encode()


@dataclass
class PatientExtraction:
    """Every job is complete after ``polls`` polls; its files are the same for every job."""

    files: dict[str, bytes] = field(
        default_factory=lambda: {
            "core.ndjson": b'{"resourceType":"Bundle","type":"transaction","entry":[]}\n',
            **{f"batch-{n}.ndjson": bundles(f"b{n}", 20) for n in range(5)},
        }
    )
    polls: int = 2
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: dict[str, dict[str, Any]] = field(default_factory=dict)
    polled: dict[str, int] = field(default_factory=dict)
    override: Callable[[SeenRequest], Reply | Raw | None] = lambda _: None
    url: str = ""
    seen: list[SeenRequest] = field(default_factory=list)

    def __call__(self, seen: SeenRequest) -> Reply | Raw:
        self.seen.append(seen)
        special = self.override(seen)
        if special is not None:
            return special
        path = seen.target.partition("?")[0]
        if path.endswith("/$extract-data"):
            return self._submit(seen.body)
        if "/__status/" in path:
            return self._status(path.rpartition("/")[2])
        if "/fhir/Task" in path:
            return self._task(seen, path.partition("/fhir/Task")[2].strip("/"))
        if path.endswith("/$evaluate-cohort"):
            entries = [{"item": {"reference": f"Patient/p{n}"}} for n in range(3)]
            return as_json({"resourceType": "List", "entry": entries})
        if path.endswith("/metadata"):
            return as_json({"resourceType": "CapabilityStatement"})
        content = self.files.get(path.rpartition("/")[2])
        return Reply(404) if content is None else Reply(200, content, {"Content-Type": "application/fhir+ndjson"})

    def _submit(self, body: bytes = b"") -> Reply:
        job_id = str(uuid.uuid4())
        self.asked[job_id] = _submitted_query(body) if body else {}
        self.tasks[job_id] = task(job_id)
        return Reply(202, headers={"Content-Location": f"/fhir/__status/{job_id}"})

    def _status(self, job_id: str) -> Reply:
        if job_id not in self.tasks:
            return Reply(404)
        self.polled[job_id] = self.polled.get(job_id, 0) + 1
        if self.polled[job_id] <= self.polls:
            return Reply(202)
        output = [{"type": "NDJSON Bundle", "url": f"/out/{job_id}/{name}"} for name in self.files]
        extension = _extension(job_id, self.asked[job_id])
        return as_json({"requiresAccessToken": False, "output": output, "error": [], "extension": extension})

    def _task(self, seen: SeenRequest, rest: str) -> Reply:
        if not rest:
            return as_json({"resourceType": "Bundle", "entry": [{"resource": task} for task in self.tasks.values()]})
        job_id, _, operation = rest.partition("/")
        found = self.tasks.get(job_id)
        if found is None:
            return as_json({"resourceType": "OperationOutcome", "issue": [{"code": "not-found"}]}, 404)
        if seen.method == "DELETE":
            del self.tasks[job_id]
            return Reply(204)
        if seen.method == "PUT":
            found["priority"] = json.loads(seen.body)["priority"]
        if operation:
            code = {"$pause": "PAUSED", "$resume": "RUNNING_PROCESS_BATCH", "$cancel": "CANCELLED"}[operation]
            found["businessStatus"]["coding"][0]["code"] = code
        return as_json(found)

    def count(self, method: str, part: str) -> int:
        """Count the requests with this method and this part in their path."""
        return sum(seen.method == method and part in seen.target for seen in self.seen)


def _submitted_query(body: bytes) -> dict[str, Any]:
    """Return the query of a submission in the form of the manifest's job extension."""
    parameters = json.loads(body)["parameter"]
    crtdl = next(one["valueBase64Binary"] for one in parameters if one["name"] == "crtdl")
    patients = [one["valueString"] for one in parameters if one["name"] == "patient"]
    return {"crtdl": json.loads(base64.b64decode(crtdl)), "patient": patients}


@contextmanager
def extraction_server(server: PatientExtraction) -> Iterator[PatientExtraction]:
    with loopback(server) as listening:
        server.url = listening.url
        yield server


def project(directory: Path, url: str, steps: str = "[extractor]", extra: str = "") -> None:
    """A configuration and a CRTDL in a directory."""
    (directory / "query.json").write_text(json.dumps(crtdl()))
    (directory / "config.yaml").write_text(
        f"""
services:
  extractor: {{base_url: "{url}", polling_interval: 1s, max_polling_interval: 1s, file_ready_interval: 50ms}}
{extra}
pipeline: {{enabled_steps: {steps}}}
retry: {{max_attempts: 2, initial_backoff_ms: 10, max_backoff_ms: 20}}
jobs_dir: jobs
"""
    )
