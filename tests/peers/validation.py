"""Scripted validation service, and a job that uses it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.shared.report import StepReport
from tasks.validation.validation import ValidationBounds, run
from tests.peers import data, job
from tests.peers.data import CANARY, bundle
from tests.peers.server import Reply, ScriptedService, SeenRequest
from tests.peers.services import issue, outcome


def judged(body: bytes) -> bytes:
    """Return one error for every ``bad`` of a resource, and a remark about the whole."""
    issues = [issue("information", "informational")]
    for number, entry in enumerate(json.loads(body)["entry"]):
        issues += [
            issue(entry=number, details={"coding": [{"code": f"Made_Up_{n}"}], "text": f"quotes {CANARY}"})
            for n in range(entry["resource"].get("bad", 0))
        ]
    return outcome(*issues)


class FakeValidation(ScriptedService[bytes]):
    """A service that validates the bodies it receives, also for a scripted bare 200. A probe gets correct findings."""

    def __init__(self, script: Callable[[int, bytes], Reply | None] | None = None, *, limit: int | None = None) -> None:
        self.accepted: list[bytes] = []
        self.probes = 0
        super().__init__(script, limit=limit)

    @property
    def bodies(self) -> list[bytes]:
        return self.requests

    @property
    def validated(self) -> list[str]:
        """``Type/id`` of everything that was judged, in the order of the answers."""
        return [key for body in self.accepted for key in keys(body)]

    def read(self, seen: SeenRequest) -> bytes:
        return seen.body

    def note(self, request: bytes) -> int:
        if b"sluiceProbe" in request:
            self.probes += 1
            return -1
        return super().note(request)

    def answer(self, number: int, request: bytes, said: Reply | None) -> Reply:
        if number < 0:
            return Reply(body=outcome(issue(entry=0)))
        reply = said or Reply()
        if reply.body is not None or reply.status != 200:
            return reply
        if not reply.reset and reply.cut is None:
            self.accepted.append(request)
        return replace(reply, body=judged(request))


def keys(body: bytes) -> list[str]:
    return [f"{one['resource']['resourceType']}/{one['resource'].get('id')}" for one in json.loads(body)["entry"]]


serving = FakeValidation
"""``with serving(…) as server``"""


class ValidationJob(job.StepJob):
    """A job whose data is validated."""

    step = "validation"
    position = 2

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.output = directory / "validation"

    def validate(
        self,
        url: str,
        *,
        bounds: ValidationBounds | None = None,
        attempts: int = 3,
        steps: list[str] | None = None,
        chunk_bytes: int | None = None,
        more: dict[str, Any] | None = None,
        **validation: Any,
    ) -> StepReport:
        """Run the step. ``chunk_bytes`` makes chunks smaller than the configuration can."""
        services = {"validation": {"url": url, "bundle_chunk_size_mb": 1, **validation}}
        pipeline = {"enabled_steps": steps or ["local_import", "validation"]}
        context = self.prepare(job.configuration(services, attempts=attempts, pipeline=pipeline), **more or {})
        bounds = bounds or ValidationBounds(mebibyte=chunk_bytes or 1024 * 1024)
        return run(context, bounds=bounds, sleep=self.slept.append)

    def reports(self) -> dict[str, list[dict[str, Any]]]:
        """Return the reports by name, every line parsed."""
        paths = sorted(self.output.glob("*.validation.ndjson"))
        return {path.name: [json.loads(line) for line in path.read_bytes().splitlines()] for path in paths}

    def summary(self) -> list[dict[str, str]]:
        with (self.output / "summary.csv").open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def files(self) -> dict[str, bytes]:
        """Everything a person looks at, byte for byte."""
        names = [*self.output.glob("*.validation.ndjson"), self.output / "summary.csv"]
        return {path.name: path.read_bytes() for path in names}


def resource(kind: str, identifier: str, **more: Any) -> dict[str, Any]:
    return data.resource(kind, identifier, **{"text": CANARY} | more)


def patient(identifier: str, **more: Any) -> dict[str, Any]:
    return resource("Patient", identifier, **more)


def patient_line(number: int, count: int, **more: Any) -> dict[str, Any]:
    """Return a patient's Bundle with ``count`` resources, the Patient first."""
    rest = [resource("Observation", f"p{number}-o{n}", **more) for n in range(1, count)]
    return bundle(patient(f"p{number}"), *rest)
