"""The sandbox's replica of the deployed pseudonymization service, for ``ScriptedServer(Replica(settings), script)``."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass

import msgspec

from deployments.sandbox.pseudonymization.app import MAX_BODY, Pseudonymizer
from deployments.sandbox.service import FhirProblem, outcome
from tests.peers.server import Reply, SeenRequest
from tests.peers.services import JSON


@dataclass(frozen=True)
class Settings:
    """How the service is set up: its own rule file (YAML), and what it and the pseudonym service behind it are like.

    ``domains`` are those that exist in the pseudonym service; ``None``: each does. ``newest`` answers 422 for a missing
    one. ``ignores_config`` is a service before 2.34.0. ``escapes`` has the second serializer. With ``replicas`` each
    request goes to the next process, and each process makes the keys that the rules do not give at its start.
    """

    rules: str = "fhirPathRules: [{path: Resource, method: redact}]"
    domains: frozenset[str] | None = None
    newest: bool = False
    ignores_config: bool = False
    escapes: bool = False
    replicas: int = 1


class Replica:
    """The service; ``restart`` starts its processes again, with new random keys."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._numbers = itertools.count()
        self.restart()

    def restart(self) -> None:
        given = self.settings
        self._processes = [
            Pseudonymizer(given.rules, given.domains, ignores_config=given.ignores_config)
            for _ in range(given.replicas)
        ]

    def __call__(self, seen: SeenRequest) -> Reply:
        """Answer a request."""
        path = seen.target.partition("?")[0]
        if seen.method == "GET" and path == "/fhir/metadata":
            statement = {"resourceType": "CapabilityStatement", "fhirVersion": "4.0.1", "rest": [{"mode": "server"}]}
            return Reply(200, json.dumps(statement).encode(), JSON)
        if seen.method != "POST" or path != "/fhir/$de-identify":
            return Reply(404)
        if len(seen.body) > MAX_BODY:
            return Reply(413)
        process = self._processes[next(self._numbers) % self.settings.replicas]
        try:
            answer = process.deidentify(seen.body)[1]
            return Reply(200, escaped(answer) if self.settings.escapes else answer, JSON)
        except FhirProblem as problem:
            document = outcome(problem.code, *problem.diagnostics, severity=problem.severity)
            status = 422 if problem.status == 500 and self.settings.newest else problem.status
            return Reply(status, msgspec.json.encode(document), JSON)


def escaped(text: bytes) -> bytes:
    """Return JSON as the second serializer of the service writes it."""

    def units(found: re.Match[str]) -> str:
        return re.sub("....", r"\\u\g<0>", found[0].encode("utf-16-be").hex().upper())

    return re.sub(r"[^\x00-\x7f]|[+<>&']", units, text.decode()).encode()
