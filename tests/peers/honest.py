"""Correct answers of services to the made-up resources that are sent first, for servers that are scripted otherwise."""

from __future__ import annotations

import json

from tests.peers.pseudonymization import pseudonyms
from tests.peers.server import Reply, SeenRequest

UNREADABLE_RULES = b"ZmhpclBhdGhSdWxlczogWwo="
STATEMENT = json.dumps({
    "resourceType": "CapabilityStatement",
    "fhirVersion": "4.0.1",
    "rest": [{"resource": [{"type": "Patient"}], "interaction": [{"code": "transaction"}]}],
}).encode()  # fmt: skip
FOUND = json.dumps({"resourceType": "OperationOutcome", "issue": [{"severity": "error", "code": "invalid"}]}).encode()
JSON = {"Content-Type": "application/fhir+json"}


def honest(seen: SeenRequest) -> Reply | None:
    """Return the answer to a probe; ``None`` for everything else."""
    if seen.target.endswith("/fhir/metadata"):
        return Reply(200, STATEMENT, JSON)
    if b"sluice-probe" not in seen.body:
        return None
    if UNREADABLE_RULES in seen.body:
        return Reply(400, b"{}", JSON)
    if seen.target.endswith("$de-identify"):
        document = json.loads(seen.body)
        if document["resourceType"] == "Parameters":
            document = document["parameter"][1]["resource"]
        return Reply(200, pseudonyms(json.dumps(document).encode()), JSON)
    if "ViewDefinition" in seen.target:
        return Reply(200, b'{"id":"sluice-probe-patient"}\n', {"Content-Type": "application/x-ndjson"})
    return Reply(200, FOUND, JSON)
