"""A job that sends, through ``STEP.run``, and a FHIR server that checks references and refuses what it is told."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from pathlib import Path
from typing import Any

from config import PipelineConfig
from tasks.send.step import STEP
from tasks.shared.report import StepReport
from tests.peers import job
from tests.peers.data import resource
from tests.peers.server import Reply, ScriptedServer, SeenRequest
from tests.peers.services import JSON, FhirDouble, issue, outcome

MISSING = {
    "hapi": (400, "processing", "HAPI-1094: Resource Patient/x not found, specified in path: Observation.subject"),
    "blaze": (409, "conflict", "Referential integrity violated. Resource `Patient/x` doesn't exist."),
    "search": (404, "not-found", "no match"),
}
"""How servers refuse a reference that leads nowhere: status, issue code and text."""


def refusal(status: int = 422, code: str = "invariant", text: str = "canary-diagnostics") -> Reply:
    return Reply(status, outcome(issue(code=code, diagnostics=text)), JSON)


class Fhir(FhirDouble):
    """With ``manners`` it takes no reference to what is neither stored nor in the same transaction; ``refused`` says
    how transactions with a resource are answered. ``sent`` are the ``Type/id`` of every transaction."""

    def __init__(self, manners: str | None = None) -> None:
        super().__init__()
        self.manners = manners
        self.refused: dict[str, Reply] = {}
        self.sent: list[list[str]] = []
        self._lock = threading.Lock()

    def __call__(self, seen: SeenRequest) -> Reply:
        if seen.method != "POST":
            return super().__call__(seen)
        entries = json.loads(seen.body)["entry"]
        keys = [entry["request"]["url"] for entry in entries]
        with self._lock:
            self.sent.append(keys)
            found = next((self.refused[key] for key in keys if key in self.refused), None)
            if found is None and self.manners is not None:
                known = self.resources.keys() | set(keys)
                wanted = re.findall(rb'"reference": ?"([^"]+)"', seen.body)
                found = None if {one.decode() for one in wanted} <= known else refusal(*MISSING[self.manners])
            return found or super().__call__(seen)

    def value(self, key: str) -> Any:
        return json.loads(self.resources[key])


def serving(fhir: Fhir) -> ScriptedServer:
    return ScriptedServer(fhir)


class SendJob(job.StepJob):
    """A job whose files are sent."""

    step = "send"
    position = 2

    def configuration(self, mode: str, url: str | None, attempts: int = 2, **send: Any) -> PipelineConfig:
        retry = {"max_attempts": attempts, "initial_backoff_ms": 1, "max_backoff_ms": 2}
        send = {"send_as": mode, "url": url} | send
        return PipelineConfig.model_validate({"services": {"send": send}, "retry": retry})

    def load(self, url: str, **send: Any) -> StepReport:
        return STEP.run(self.prepare(self.configuration("direct_resource_load", url, **send)))

    def kept(self) -> list[dict[str, Any]]:
        """Return what ``send/failed`` has of refused resources."""
        path = self.directory / "send/failed/refused.ndjson"
        return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []

    def summary(self) -> list[str]:
        path = self.directory / "send/summary.csv"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def pending(self) -> Path:
        return self.directory / "send/pending.db"

    def waiting(self) -> list[tuple[str, int]]:
        """Return file and line of what waits."""
        with sqlite3.connect(self.pending) as db:
            return list(db.execute("SELECT file, line FROM pending ORDER BY file, line"))


def observation(identifier: str, **more: Any) -> dict[str, Any]:
    return resource("Observation", identifier, **more)


def to(target: str) -> dict[str, str]:
    return {"reference": target}
