"""``getResourceKey()`` and ``getReferenceKey()``: opaque values by which rows of two views can be joined.

A key is ``Type/id``: unique over all types, and to be had from a reference alone.
"""

from __future__ import annotations

from typing import Any


def resource_key(data: Any) -> str | None:
    """The key of a resource; None for what is none, or has no id."""
    if not isinstance(data, dict):
        return None
    kind, identity = data.get("resourceType"), data.get("id")
    return f"{kind}/{identity}" if isinstance(kind, str) and isinstance(identity, str) else None


def reference_key(data: Any, wanted: str | None) -> str | None:
    """The key of the resource that a Reference names; None when it names none, or one of another type than wanted.

    Version and server are left out. What is no ``Type/id`` (``urn:uuid:…``, ``#contained``) is its own key, of the type
    that ``Reference.type`` gives.
    """
    reference = data.get("reference") if isinstance(data, dict) else None
    if not isinstance(reference, str):
        return None
    parts = reference.partition("/_history/")[0].split("/")
    if len(parts) < 2 or not parts[-2][:1].isupper():
        return reference if wanted is None or data.get("type") == wanted else None
    kind, identity = parts[-2:]
    return f"{kind}/{identity}" if wanted is None or kind == wanted else None
