"""``/fhir/metadata``: what the extraction server can do, and that it is a sandbox."""

from __future__ import annotations

from typing import Any

from deployments.sandbox.common.service import DISCLAIMER

_OPERATIONS = "https://sandbox.example/fhir/OperationDefinition"


def capability_statement(root: str, started: str) -> dict[str, Any]:
    """The CapabilityStatement."""
    return {
        "resourceType": "CapabilityStatement",
        "status": "active",
        "experimental": True,
        "date": started,
        "kind": "instance",
        "software": {"name": "Sluice sandbox extraction server"},
        "implementation": {"description": DISCLAIMER, "url": f"{root}/fhir"},
        "fhirVersion": "4.0.1",
        "format": ["application/fhir+json"],
        "rest": [
            {
                "mode": "server",
                "documentation": DISCLAIMER,
                "resource": [
                    {
                        "type": "Task",
                        "interaction": [{"code": code} for code in ("read", "update", "delete", "search-type")],
                        "versioning": "versioned-update",
                        "searchParam": [{"name": "_id", "type": "token"}, {"name": "status", "type": "token"}],
                        "operation": [_operation(name) for name in ("pause", "resume", "cancel")],
                    }
                ],
                "operation": [_operation(name) for name in ("extract-data", "evaluate-cohort")],
            }
        ],
    }


def _operation(name: str) -> dict[str, str]:
    return {"name": name, "definition": f"{_OPERATIONS}/{name}"}
