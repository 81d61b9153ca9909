"""A scripted extraction server on a real loopback socket, for commands and whole runs."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.tasks.extractor.support import crtdl
from tests.tasks.shared.loopback import Raw, Reply, Seen, loopback

JSON = {"Content-Type": "application/fhir+json"}


def bundles(name: str, count: int) -> bytes:
    """Lines whose decimals have a spelling to keep."""
    lines = [
        f'{{"resourceType":"Bundle","id":"{name}-{n}","type":"transaction","entry":[{{"resource":'
        f'{{"resourceType":"Patient","id":"{name}-{n}","x":1.50}}}}]}}'
        for n in range(count)
    ]
    return ("\n".join(lines) + "\n").encode()


@dataclass
class ExtractionServer:
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
    override: Callable[[Seen], Reply | Raw | None] = lambda _: None
    url: str = ""
    seen: list[Seen] = field(default_factory=list)

    def __call__(self, seen: Seen) -> Reply | Raw:
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
            return _json({"resourceType": "List", "entry": entries})
        if path.endswith("/metadata"):
            return _json({"resourceType": "CapabilityStatement"})
        content = self.files.get(path.rpartition("/")[2])
        return Reply(404) if content is None else Reply(200, content, {"Content-Type": "application/fhir+ndjson"})

    def _submit(self, body: bytes = b"") -> Reply:
        job_id = str(uuid.uuid4())
        self.asked[job_id] = _asked(body) if body else {}
        self.tasks[job_id] = {
            "resourceType": "Task", "id": job_id, "status": "in-progress", "intent": "order", "priority": "routine",
            "meta": {"versionId": "1"}, "businessStatus": {"coding": [{"code": "RUNNING_PROCESS_BATCH"}]},
        }  # fmt: skip
        return Reply(202, headers={"Content-Location": f"/fhir/__status/{job_id}"})

    def _status(self, job_id: str) -> Reply:
        if job_id not in self.tasks:
            return Reply(404)
        self.polled[job_id] = self.polled.get(job_id, 0) + 1
        if self.polled[job_id] <= self.polls:
            return Reply(202)
        output = [{"type": "NDJSON Bundle", "url": f"/out/{job_id}/{name}"} for name in self.files]
        job = {"id": job_id, "status": "COMPLETED", "parameters": self.asked[job_id]}
        extension = [{"url": "https://example.org/StructureDefinition/extractor-job", "valueObject": job}]
        return _json({"requiresAccessToken": False, "output": output, "error": [], "extension": extension})

    def _task(self, seen: Seen, rest: str) -> Reply:
        if not rest:
            return _json({"resourceType": "Bundle", "entry": [{"resource": task} for task in self.tasks.values()]})
        job_id, _, operation = rest.partition("/")
        found = self.tasks.get(job_id)
        if found is None:
            return _json({"resourceType": "OperationOutcome", "issue": [{"code": "not-found"}]}, 404)
        if seen.method == "DELETE":
            del self.tasks[job_id]
            return Reply(204)
        if seen.method == "PUT":
            found["priority"] = json.loads(seen.body)["priority"]
        if operation:
            code = {"$pause": "PAUSED", "$resume": "RUNNING_PROCESS_BATCH", "$cancel": "CANCELLED"}[operation]
            found["businessStatus"]["coding"][0]["code"] = code
        return _json(found)

    def count(self, method: str, part: str) -> int:
        """How many requests had this method and this in their path."""
        return sum(seen.method == method and part in seen.target for seen in self.seen)


def _asked(body: bytes) -> dict[str, Any]:
    """What a submission asks, as the manifest's job extension tells it."""
    parameters = json.loads(body)["parameter"]
    crtdl = next(one["valueBase64Binary"] for one in parameters if one["name"] == "crtdl")
    patients = [one["valueString"] for one in parameters if one["name"] == "patient"]
    return {"crtdl": json.loads(base64.b64decode(crtdl)), "patient": patients}


def _json(document: object, status: int = 200) -> Reply:
    return Reply(status, json.dumps(document).encode(), JSON)


@contextmanager
def extraction_server(server: ExtractionServer) -> Iterator[ExtractionServer]:
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
