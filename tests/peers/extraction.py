"""Fake extraction servers, in memory for the step, over a socket for commands and runs; and jobs of the step."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.peers.server import Raw, Reply, SeenRequest, loopback
from tests.peers.services import as_json, task

BASE = "https://torch.example"
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


def _extension(job_id: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    about = {"id": job_id, "status": "COMPLETED", "parameters": parameters}
    return [{"url": "https://example.org/StructureDefinition/extractor-job", "valueObject": about}]


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
            return self.submit(seen.body)
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

    def submit(self, body: bytes = b"") -> Reply:
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
