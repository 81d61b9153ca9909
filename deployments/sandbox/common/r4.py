"""The resource types of FHIR R4 (4.0.1), and the syntax of ids and references."""

from __future__ import annotations

import re

from deployments.sandbox.common.fhirpath import R4

_ABSTRACT = frozenset({"DomainResource", "Resource"})
CONCRETE_TYPES = frozenset(name for name, parent in R4["type2Parent"].items() if parent in _ABSTRACT) - _ABSTRACT
"""Every type that a resource can have."""
RESOURCE_TYPES = CONCRETE_TYPES - {"Parameters"}
"""Types with an endpoint."""

ID = re.compile(r"[A-Za-z0-9\-.]{1,64}")
LITERAL = re.compile(r"([A-Z][A-Za-z]+)/([A-Za-z0-9\-.]{1,64})(?:/_history/[A-Za-z0-9\-.]{1,64})?(?:#.*)?")
"""A relative literal reference: type and id, with or without a version or a fragment."""
