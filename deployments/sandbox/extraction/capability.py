"""``/fhir/metadata``: what the extraction server can do."""

from __future__ import annotations

from deployments.sandbox.common import request

_OPERATIONS = "https://sandbox.example/fhir/OperationDefinition"


def capability_statement(root: str, started: str) -> bytes:
    """The CapabilityStatement as JSON."""
    tasks = {
        "type": "Task",
        "interaction": [{"code": code} for code in ("read", "update", "delete", "search-type")],
        "versioning": "versioned-update",
        "searchParam": [{"name": "_id", "type": "token"}, {"name": "status", "type": "token"}],
        "operation": [_operation(name) for name in ("pause", "resume", "cancel")],
    }
    rest = {"resource": [tasks], "operation": [_operation(name) for name in ("extract-data", "evaluate-cohort")]}
    return request.capability_statement("extraction server", started, rest, url=f"{root}/fhir")


def _operation(name: str) -> dict[str, str]:
    return {"name": name, "definition": f"{_OPERATIONS}/{name}"}
