"""The CapabilityStatement: what the server can do."""

from __future__ import annotations

from deployments.sandbox.common import request
from deployments.sandbox.common.r4 import RESOURCE_TYPES

_INTERACTIONS = ("read", "update", "delete", "create", "search-type")


def capability_statement(base: str, manners: str, started: str) -> bytes:
    """The statement as JSON. ``started`` is a FHIR dateTime."""
    resources = [
        {
            "type": kind,
            "interaction": [{"code": code} for code in _INTERACTIONS],
            "versioning": "versioned-update",
            "readHistory": False,
            "updateCreate": True,
            "conditionalCreate": False,
            "searchParam": [{"name": "_id", "type": "token"}, {"name": "identifier", "type": "token"}],
        }
        for kind in sorted(RESOURCE_TYPES)
    ]
    rest = {"resource": resources, "interaction": [{"code": "transaction"}, {"code": "batch"}]}
    return request.capability_statement("FHIR server", started, rest, version=f"{manners} manners", url=base)
