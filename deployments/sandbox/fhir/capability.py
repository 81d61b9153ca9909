"""The CapabilityStatement: what the server can do, and that it is a sandbox."""

from __future__ import annotations

import msgspec

from deployments.sandbox.common.service import DISCLAIMER
from deployments.sandbox.fhir.types import RESOURCE_TYPES

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
    return msgspec.json.encode(
        {
            "resourceType": "CapabilityStatement",
            "status": "active",
            "experimental": True,
            "date": started,
            "kind": "instance",
            "software": {"name": "Sluice sandbox FHIR server", "version": f"{manners} manners"},
            "implementation": {"description": DISCLAIMER, "url": base},
            "fhirVersion": "4.0.1",
            "format": ["application/fhir+json"],
            "rest": [
                {
                    "mode": "server",
                    "documentation": DISCLAIMER,
                    "resource": resources,
                    "interaction": [{"code": "transaction"}, {"code": "batch"}],
                }
            ],
        }
    )
