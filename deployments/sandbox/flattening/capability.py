"""The CapabilityStatement: one operation, and that it is a sandbox. Clients ask for it as a sign of life."""

from __future__ import annotations

import msgspec

from deployments.sandbox.common.service import DISCLAIMER


def capability_statement(base: str, started: str) -> bytes:
    """The statement as JSON. ``started`` is a FHIR dateTime."""
    operation = {"name": "run", "definition": "http://sql-on-fhir.org/OperationDefinition/$run"}
    return msgspec.json.encode(
        {
            "resourceType": "CapabilityStatement",
            "status": "active",
            "experimental": True,
            "date": started,
            "kind": "instance",
            "software": {"name": "Sluice sandbox flattening service"},
            "implementation": {"description": DISCLAIMER, "url": base},
            "fhirVersion": "4.0.1",
            "format": ["application/fhir+json"],
            "rest": [{"mode": "server", "documentation": DISCLAIMER, "operation": [operation]}],
        }
    )
