"""Fake FHIR server for transactions, and a job that sends to it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from tasks.send.comparison import compare
from tasks.send.direct import LoadBounds, run
from tasks.shared.report import StepReport
from tests.peers import job, server
from tests.peers.data import bundle, resource
from tests.peers.server import ScriptedService, SeenRequest


@dataclass(frozen=True)
class FhirReply(server.Reply):
    """``apply``: store the entries first."""

    apply: bool = True


Script = Callable[[int, dict[str, Any]], FhirReply | None]


def outcome(code: str, diagnostics: str = "", text: str | None = None) -> bytes:
    issue: dict[str, Any] = {"severity": "error", "code": code, "diagnostics": diagnostics}
    if text is not None:
        issue["details"] = {"text": text}
    return json.dumps({"resourceType": "OperationOutcome", "issue": [issue]}).encode()


def hapi_missing(target: str = "Patient/x") -> FhirReply:
    text = f"HAPI-1094: Resource {target} not found, specified in path: Observation.subject"
    return FhirReply(400, outcome("processing", text), apply=False)


def blaze_missing(target: str = "Patient/x") -> FhirReply:
    text = f"Referential integrity violated. Resource `{target}` doesn't exist."
    return FhirReply(409, outcome("conflict", text), apply=False)


class FakeFhir(ScriptedService[dict[str, Any]]):
    """Stores what is PUT in transactions."""

    def __init__(self, script: Script | None = None) -> None:
        self.spans: list[tuple[float, float]] = []
        """When each request began and ended, in the order of ``bundles``; ends in infinity while under way."""
        self.stored: dict[str, bytes] = {}
        self.history: list[str] = []
        super().__init__(script)

    @property
    def bundles(self) -> list[dict[str, Any]]:
        return self.requests

    @property
    def sizes(self) -> list[int]:
        return [len(seen.body) for seen in self.seen]

    def entries(self, number: int) -> list[str]:
        """``Type/id`` of the entries of a request, in order."""
        return [entry["request"]["url"] for entry in self.bundles[number].get("entry", [])]

    @property
    def sent(self) -> list[list[str]]:
        return [self.entries(number) for number in range(len(self.bundles))]

    def read(self, seen: SeenRequest) -> dict[str, Any]:
        # Numbers as text: their spelling is what the tests look at.
        bundle: dict[str, Any] = json.loads(seen.body, parse_float=str, parse_int=str)
        return bundle

    def note(self, request: dict[str, Any]) -> int:
        self.spans.append((time.monotonic(), math.inf))
        return super().note(request)

    def answer(self, number: int, request: dict[str, Any], said: server.Reply | None) -> server.Reply:
        reply = said or FhirReply()
        body = self.apply(self.seen[number].body) if isinstance(reply, FhirReply) and reply.apply else b""
        with self.lock:
            self.spans[number] = (self.spans[number][0], time.monotonic())
        return replace(reply, body=body if reply.body is None else reply.body)

    def apply(self, body: bytes) -> bytes:
        raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        entries = msgspec.json.decode(raw["entry"], type=list[dict[str, msgspec.Raw]])
        results = []
        with self.lock:
            for entry in entries:
                key = json.loads(bytes(entry["request"]))["url"]
                status = "200 OK" if key in self.stored else "201 Created"
                self.stored[key] = bytes(entry["resource"])
                self.history.append(key)
                results.append({"response": {"status": status, "etag": 'W/"1"'}})
        return response(results)


def response(results: Sequence[dict[str, Any]]) -> bytes:
    return json.dumps({"resourceType": "Bundle", "type": "transaction-response", "entry": list(results)}).encode()


serving = FakeFhir
"""``with serving(…) as server``"""


class DirectLoadJob(job.StepJob):
    """A job whose data is sent."""

    step = "send"

    def send(
        self,
        url: str,
        *,
        bounds: LoadBounds | None = None,
        attempts: int = 3,
        **send: Any,
    ) -> StepReport:
        services = {"send": {"send_as": "direct_resource_load", "url": url, **send}}
        context = self.prepare(job.configuration(services, attempts=attempts))
        return run(context, compare(context), bounds=bounds, sleep=self.slept.append)

    def failed(self) -> list[dict[str, Any]]:
        """Return the contents of ``send/failed``, in order."""
        return [json.loads(path.read_bytes()) for path in super().failed() if path.suffix == ".json"]


def observation(identifier: str, **more: Any) -> dict[str, Any]:
    return resource("Observation", identifier, **more)


def patient_line(number: int, count: int) -> dict[str, Any]:
    """Return a patient's Bundle with ``count`` resources, the Patient first."""
    patient = resource("Patient", f"p{number}")
    rest = [
        observation(f"p{number}-o{index}", subject={"reference": f"Patient/p{number}"}) for index in range(1, count)
    ]
    return bundle(patient, *rest)
