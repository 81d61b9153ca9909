"""A transfer job, and a receiver that does what the receiving process does (document 3 §7)."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
import zstandard

from deployments.sandbox.common.gate import RequiredCredentials
from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.fhir.app import FhirOptions, fhir_service
from tasks.send.comparison import compare
from tasks.send.transfer.store import TransferBounds
from tasks.send.transfer.transfer import run
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tests.peers import job
from tests.peers.server import Reply, ScriptedServer, SeenRequest
from tests.peers.services import FhirDouble

SYSTEM = "http://medizininformatik-initiative.de/sid/project-identifier"
PROJECT = "Test_PROJECT-1"
ORGANIZATION = "dic.example.org"
NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


@dataclass
class Received:
    """Result of the receiving process."""

    document: dict[str, Any]
    attachment: dict[str, Any]
    archive: bytes = field(repr=False)

    @property
    def files(self) -> dict[str, bytes]:
        """The files of the zip without the manifest."""
        with zipfile.ZipFile(io.BytesIO(self.archive)) as zipped:
            assert zipped.testzip() is None
            return {name: zipped.read(name) for name in zipped.namelist() if name != "manifest.json"}

    @property
    def manifest(self) -> list[dict[str, Any]]:
        with zipfile.ZipFile(io.BytesIO(self.archive)) as zipped:
            files: list[dict[str, Any]] = json.loads(zipped.read("manifest.json"))["files"]
            return files


class TransferStore:
    """A FHIR store under test, seen from the other side."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, trust_env=False, timeout=60)

    def receive(self) -> Received:
        """Receive as the real process does: first hit, first attachment, its Binary, a zip that matches it."""
        found = self.http.get("/fhir/DocumentReference", params={"identifier": f"{SYSTEM}|{PROJECT}"}).json()
        document = found["entry"][0]["resource"]
        attachment = document["content"][0]["attachment"]
        answer = self.http.get(f"/fhir/{attachment['url']}", headers={"Accept": attachment["contentType"]})
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/zip"
        assert attachment["size"] == len(answer.content)
        assert base64.b64decode(attachment["hash"]) == hashlib.sha1(answer.content).digest()
        return Received(document, attachment, answer.content)

    def put(self, kind: str, identity: str, **more: Any) -> None:
        """Somebody else's resource."""
        body = {"resourceType": kind, "id": identity, **more}
        headers = {"Content-Type": "application/fhir+json"}
        self.http.put(f"/fhir/{kind}/{identity}", json=body, headers=headers).raise_for_status()

    def faults(self, *rules: dict[str, Any]) -> None:
        self.http.put("/_sandbox/faults", json=list(rules)).raise_for_status()

    def requests(self) -> list[tuple[str, str, int]]:
        """Return method, path below ``/fhir/`` and status of each request, with status 0 if there was no answer."""
        seen = self.http.get("/_sandbox/requests").json()["requests"]
        return [(one["method"], one["path"].removeprefix("/fhir/"), one["status"] or 0) for one in seen]

    def writes(self) -> list[tuple[str, str]]:
        """Method and type of what may have changed something."""
        return [(method, path.partition("/")[0]) for method, path, _ in self.requests() if method in ("PUT", "DELETE")]

    def forget_requests(self) -> None:
        self.http.delete("/_sandbox/requests").raise_for_status()

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = self.http.get("/_sandbox/counts").json()
        return counts

    def state(self) -> list[bytes]:
        """All that it holds."""
        return self.http.get("/_sandbox/resources").content.splitlines()


@contextmanager
def serving(gate: RequiredCredentials | None = None, **options: Any) -> Iterator[TransferStore]:
    """Yield a sandbox FHIR server on loopback."""
    with serve_in_thread(fhir_service(FhirOptions(**options), gate)) as served:
        store = TransferStore(served.url)
        try:
            yield store
        finally:
            store.http.close()


class Endpoint(ScriptedServer):
    """A store of zips and their documents; ``script`` may say something else. ``moment`` is what a request is for:
    ``search``, ``look``, ``upload``, ``commit``, a second time with ``again``."""

    def __init__(self, said: Callable[[str, SeenRequest, Reply], Reply | None] | None = None) -> None:
        self.store = FhirDouble()
        self.said = said
        self.moments: list[str] = []
        super().__init__(self._answer)

    @property
    def documents(self) -> list[dict[str, Any]]:
        kept = self.store.resources.items()
        return [json.loads(body) for key, body in kept if key.startswith("DocumentReference/")]

    def _answer(self, seen: SeenRequest) -> Reply:
        moment = {"GET": "search", "HEAD": "look"}.get(seen.method) or (
            "upload" if "/Binary/" in seen.target else "commit"
        )
        moment = f"{moment} again" if moment in self.moments else moment
        self.moments.append(moment)
        reply = self.store(seen)
        return (self.said(moment, seen, reply) if self.said else None) or reply


class TransferJob(job.StepJob):
    """A job whose files are handed over."""

    step = "send"
    position = 2
    write = job.StepJob.put

    def fill(self, *, patients: int = 20) -> dict[str, bytes]:
        """NDJSON in both forms; what the receiver must find."""
        files = {
            "core.ndjson": b'{"resourceType":"Organization","id":"o","name":"Klinik"}\n',
            "batch-1.ndjson": b"".join(
                b'{"resourceType":"Patient","id":"p%d","extension":[{"valueDecimal":1.50}]}\n' % n
                for n in range(patients)
            ),
        }
        self.write("core.ndjson", files["core.ndjson"])
        self.write("batch-1.ndjson.zst", zstandard.compress(files["batch-1.ndjson"]))
        return files

    def make_context(
        self,
        url: str,
        *,
        attempts: int = 3,
        auth: dict[str, Any] | None = None,
        organization: str = ORGANIZATION,
        **more: Any,
    ) -> StepContext:
        transfer = {"project_identifier": PROJECT, "organization_identifier": organization}
        send = {"send_as": "transfer_load", "url": url, "transfer": transfer, "auth": auth or {}, **more}
        return self.prepare(job.configuration({"send": send}, attempts=attempts))

    def send(
        self, url: str, *, bounds: TransferBounds | None = None, now: datetime = NOON, **options: Any
    ) -> StepReport:
        context = self.make_context(url, **options)
        return run(context, compare(context), bounds=bounds, sleep=self.slept.append, now=lambda: now)

    @property
    def state_files(self) -> set[str]:
        """Names of the files in ``send/``, without kept answers."""
        return {path.name for path in (self.directory / "send").iterdir()} - {"failed"}
