"""FHIR R4 (4.0.1): its published JSON Schema, its resource types, and the syntax of ids and references."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

SCHEMA: Final = Path(__file__).with_name("r4.schema.json")
ID: Final = re.compile(r"[A-Za-z0-9\-.]{1,64}")
LITERAL: Final = re.compile(r"([A-Z][A-Za-z]+)/([A-Za-z0-9\-.]{1,64})(?:/_history/[A-Za-z0-9\-.]{1,64})?(?:#.*)?")
"""A relative literal reference: type and id, with or without a version or a fragment."""


@cache
def schema() -> dict[str, Any]:
    """Return the schema."""
    read: dict[str, Any] = msgspec.json.decode(SCHEMA.read_bytes())
    return read


@cache
def resource_types() -> frozenset[str]:
    """Return every type that a resource can have."""
    kinds = schema()["definitions"].items()
    return frozenset(name for name, kind in kinds if "const" in kind.get("properties", {}).get("resourceType", {}))


def local_key(reference: object) -> str | None:
    """Return ``Type/id`` of a relative literal reference, or None."""
    match = LITERAL.fullmatch(reference) if isinstance(reference, str) else None
    return f"{match[1]}/{match[2]}" if match else None
