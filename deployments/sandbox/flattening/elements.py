"""Resource types of FHIR R4, as the FHIRPath library's model has them."""

from __future__ import annotations

from deployments.sandbox.common.fhirpath import R4

_ABSTRACT = frozenset({"DomainResource", "Resource"})


def is_resource_type(name: str) -> bool:
    """Whether it is the name of a resource type."""
    return name not in _ABSTRACT and R4["type2Parent"].get(name) in _ABSTRACT
