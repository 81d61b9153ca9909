"""The sandbox's replica of the deployed pseudonymization service, for ``ScriptedServer(Replica(settings), script)``."""

from __future__ import annotations

import json

import msgspec

from deployments.sandbox.pseudonymization.app import MAX_BODY, Pseudonymizer, PseudonymizerSettings
from deployments.sandbox.service import FhirProblem, outcome
from tests.peers.server import Reply, SeenRequest
from tests.peers.services import JSON

Settings = PseudonymizerSettings


class Replica(Pseudonymizer):
    """The service; ``restart`` starts its processes again, with new random keys."""

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
        try:
            return Reply(200, self.deidentify(seen.body)[1], JSON)
        except FhirProblem as problem:
            document = outcome(problem.code, *problem.diagnostics, severity=problem.severity)
            return Reply(problem.status, msgspec.json.encode(document), JSON)
