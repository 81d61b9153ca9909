"""Well-behaved answers of the services: one function of a request each.

``ScriptedServer(validation, script)`` serves one of them, and the script may say something else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tests.peers.data import CANARY
from tests.peers.server import Reply, SeenRequest

Answer = Callable[[SeenRequest], Reply]

JSON = {"Content-Type": "application/fhir+json"}
NDJSON = {"Content-Type": "application/fhir+ndjson"}
JOB = "11111111-1111-4111-8111-111111111111"


def as_json(document: object, status: int = 200, **headers: str) -> Reply:
    return Reply(status, json.dumps(document).encode(), JSON | headers)


def issue(severity: str = "error", code: str = "structure", entry: int | None = None, **more: Any) -> dict[str, Any]:
    """Return an issue; as services do, it quotes data."""
    place = {} if entry is None else {"expression": [f"Bundle.entry[{entry}].resource.ofType(Patient).name"]}
    return {"severity": severity, "code": code, "diagnostics": f"about {CANARY}", **place, **more}


def outcome(*issues: dict[str, Any]) -> bytes:
    return json.dumps({"resourceType": "OperationOutcome", "issue": list(issues)}).encode()


def statement(*interactions: str) -> Reply:
    resources = [{"type": kind} for kind in ("Patient", "Binary", "DocumentReference")]
    rest = {"mode": "server", "resource": resources, "interaction": [{"code": code} for code in interactions]}
    return as_json({"resourceType": "CapabilityStatement", "fhirVersion": "4.0.1", "rest": [rest]})


# Extraction


def extraction(files: Mapping[str, bytes], job: str = JOB) -> Answer:
    """Return a server whose one job is complete at the first poll, with these files."""

    def answer(seen: SeenRequest) -> Reply:
        path = seen.target.partition("?")[0]
        if path.endswith("/$extract-data"):
            return Reply(202, headers={"Content-Location": f"/fhir/__status/{job}"})
        if path.endswith(f"/__status/{job}"):
            return manifest(*(f"/out/{name}" for name in files))
        if path.endswith(f"/Task/{job}"):
            return as_json(task(job, "COMPLETED"))
        if path.endswith("/metadata"):
            return statement()
        return download(files)(seen)

    return answer


def manifest(*urls: str, **more: Any) -> Reply:
    output = [{"type": "NDJSON Bundle", "url": url} for url in urls]
    return as_json({"requiresAccessToken": False, "output": output, "error": []} | more)


def task(job: str = JOB, status: str = "RUNNING_PROCESS_BATCH", **more: Any) -> dict[str, Any]:
    return {
        "resourceType": "Task", "id": job, "status": "in-progress", "intent": "order", "priority": "routine",
        "meta": {"versionId": "3"}, "businessStatus": {"coding": [{"code": status}]},
    } | more  # fmt: skip


def download(files: Mapping[str, bytes]) -> Answer:
    """Return a server of files, by the last segment of the path."""

    def answer(seen: SeenRequest) -> Reply:
        content = files.get(seen.target.partition("?")[0].rpartition("/")[2])
        return Reply(404) if content is None else Reply(200, content, NDJSON)

    return answer


# Pseudonymization


def pseudonymization(seen: SeenRequest) -> Reply:
    """Answer ``$de-identify`` with pseudonyms, and 400 where the sent rules cannot be read."""
    if seen.method == "GET":
        return statement()
    resource, rules = deidentify(seen.body)
    if rules is not None and rules.startswith(b"fhirPathRules: [\n"):
        return Reply(400, outcome(issue()), JSON)
    return Reply(200, pseudonyms(resource), JSON)


def deidentify(body: bytes) -> tuple[bytes, bytes | None]:
    """Return the resource of a request, and the rules that were sent with it."""
    if b'"Parameters"' not in body[:60]:
        return body, None
    config, resource = msgspec.json.decode(body, type=dict[str, msgspec.Raw])["parameter"], b""
    first, second = msgspec.json.decode(config, type=list[dict[str, msgspec.Raw]])
    resource = bytes(second["resource"])
    return resource, base64.b64decode(json.loads(bytes(first["valueAttachment"]))["data"])


def pseudonyms(resource: bytes, key: bytes = b"key") -> bytes:
    """Return every id, reference and text of a person by a keyed hash: deterministic, consistent over requests."""

    def hashed(match: re.Match[bytes]) -> bytes:
        return match[1] + hashlib.sha256(key + match[2]).hexdigest()[:20].encode() + b'"'

    resource = re.sub(rb'("(?:id|family)":\s*")([^"]+)"', hashed, resource)
    resource = re.sub(rb'("reference":\s*"[A-Za-z]+/)([^"]+)"', hashed, resource)
    return resource.replace(CANARY.encode(), b"removed")


# Validation


def validation(seen: SeenRequest) -> Reply:
    """Answer one error for each Patient, and a remark about the whole."""
    entries = json.loads(seen.body)["entry"]
    found = [issue(entry=at) for at, entry in enumerate(entries) if entry["resource"]["resourceType"] == "Patient"]
    return Reply(200, outcome(issue("information", "informational"), *found), JSON)


# Flattening


def flattening(seen: SeenRequest) -> Reply:
    """Answer the rows of a view whose paths are names joined by points."""
    if seen.method == "GET":
        return statement()
    view, resources = view_run(seen.body)
    rows = (row for resource in resources for row in select_rows(view["select"], resource))
    return Reply(200, b"".join(as_row(row) + b"\n" for row in rows), {"Content-Type": "application/x-ndjson"})


def as_row(cells: Mapping[str, bytes | None]) -> bytes:
    found = (b"%b:%b" % (json.dumps(name).encode(), value) for name, value in cells.items() if value is not None)
    return b"{%b}" % b",".join(found)


def view_run(body: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return the view of a ``$run`` and its resources."""
    raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])["parameter"]
    view, *resources = [bytes(one["resource"]) for one in msgspec.json.decode(raw, type=list[dict[str, msgspec.Raw]])]
    return json.loads(view), resources


def select_rows(select: Sequence[dict[str, Any]], raw: bytes) -> list[dict[str, bytes | None]]:
    rows: list[dict[str, bytes | None]] = [{}]
    for clause in select:
        each = clause.get("forEach") or clause.get("forEachOrNull")
        elements = [raw]
        if each:
            found = msgspec.json.decode(_at(raw, each) or b"[]", type=list[msgspec.Raw])
            elements = [bytes(one) for one in found] or ([b"{}"] if "forEachOrNull" in clause else [])
        made = [
            {column["name"]: _at(element, column["path"]) for column in clause.get("column", ())} | below
            for element in elements
            for below in select_rows(clause.get("select", ()), element)
        ]
        rows = [row | more for row in rows for more in made]
    return rows


def _at(raw: bytes, path: str) -> bytes | None:
    for key in path.split("."):
        found = msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).get(key)
        if found is None:
            return None
        raw = bytes(found)
    return raw


# FHIR


class FhirDouble:
    """Keeps what is PUT, alone or in transactions: ``resources`` by ``Type/id``, byte for byte."""

    def __init__(self) -> None:
        self.resources: dict[str, bytes] = {}

    def __call__(self, seen: SeenRequest) -> Reply:
        path = seen.target.partition("?")[0].removeprefix("/fhir").strip("/")
        if seen.method == "POST":
            results = [{"response": {"status": status}} for status in self._apply(seen.body)]
            return as_json({"resourceType": "Bundle", "type": "transaction-response", "entry": results})
        if seen.method == "PUT":
            self.resources[path] = seen.body
            return Reply(201)
        if seen.method == "DELETE":
            return Reply(204 if self.resources.pop(path, None) else 404)
        if path == "metadata":
            return statement("transaction")
        if "/" in path:
            kept = self.resources.get(path)
            return Reply(404) if kept is None else Reply(200, *_binary(kept))
        return searchset(*(json.loads(body) for key, body in self.resources.items() if key.startswith(f"{path}/")))

    def _apply(self, body: bytes) -> Iterator[str]:
        raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        for entry in msgspec.json.decode(raw["entry"], type=list[dict[str, msgspec.Raw]]):
            key = json.loads(bytes(entry["request"]))["url"]
            yield "200 OK" if key in self.resources else "201 Created"
            self.resources[key] = bytes(entry["resource"])


def searchset(*documents: dict[str, Any]) -> Reply:
    entries = [{"resource": document, "search": {"mode": "match"}} for document in documents]
    return as_json({"resourceType": "Bundle", "type": "searchset", "total": len(entries), "entry": entries})


def _binary(kept: bytes) -> tuple[bytes, dict[str, str]]:
    """Return the content of a Binary and its type, or a resource as it is."""
    if kept.startswith(b"{"):
        document = json.loads(kept)
        if document["resourceType"] != "Binary":
            return kept, JSON
        kept = base64.b64decode(document["data"])
    return kept, {"Content-Type": "application/zip"}


# S3


class S3Double:
    """moto's S3, called as the WSGI application that it is, with one bucket."""

    def __init__(self, bucket: str = "bucket", region: str = "eu-central-1") -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from moto.s3.models import s3_backends
        from werkzeug.test import Client

        backend = s3_backends["123456789012"]["aws"]
        backend.reset()  # there is one of them in a process
        self._buckets = backend.buckets
        backend.create_bucket(bucket, region)
        self._client, self._bucket = Client(DomainDispatcherApplication(create_backend_app)), bucket

    def __call__(self, seen: SeenRequest) -> Reply:
        path, _, query = seen.target.partition("?")
        headers = seen.headers | {"host": "127.0.0.1"}  # else it looks for a bucket in the name
        asked = {"method": seen.method, "query_string": query, "data": seen.body, "headers": headers}
        answer = self._client.open(path, **asked)
        given = {name: value for name, value in answer.headers.items() if name.lower() != "content-length"}
        length = answer.headers.get("content-length") if seen.method == "HEAD" else None
        return Reply(answer.status_code, answer.data, given, length=None if length is None else int(length))

    @property
    def objects(self) -> dict[str, bytes]:
        return {key: one.value for key, one in self._buckets[self._bucket].keys.items()}

    @property
    def unfinished(self) -> list[str]:
        """Return the keys of the uploads in parts that were neither completed nor aborted."""
        return sorted(one.key_name for one in self._buckets[self._bucket].multiparts.values())

    def metadata(self, key: str) -> dict[str, str]:
        """Return the metadata of an object with its media type."""
        return dict(self._buckets[self._bucket].keys[key].metadata)
