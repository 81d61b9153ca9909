"""The id in a reference: what is hashed or replaced, while the rest of the reference stays (document 3 §4)."""

from __future__ import annotations

import re
from collections.abc import Callable

from deployments.sandbox.common.r4 import RESOURCE_TYPES
from deployments.sandbox.pseudonymization.model import Element

_TYPE = "|".join(sorted(RESOURCE_TYPES))
_ID = r"[A-Za-z0-9\-.]{1,64}"
_LITERAL = re.compile(
    rf"(?P<prefix>(?:https?://[^\s?#|]+/)?(?P<type>{_TYPE})/)(?P<id>{_ID})(?P<suffix>/_history/{_ID})?"
)
_CONDITIONAL = re.compile(
    rf"(?P<prefix>(?:(?P<type>{_TYPE})\?)?identifier=(?:https?://[^\s|]*\|)?)(?P<id>{_ID})(?P<suffix>)"
)
_URN = re.compile(
    r"(?P<prefix>urn:(?:oid|uuid):)(?P<id>[0-2](?:\.(?:0|[1-9][0-9]*))+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})"
    r"(?P<suffix>)"
)


def holds_reference(element: Element, value: str) -> bool:
    """Whether only the id in this value may be replaced: ``Reference.reference``, or a ``uri`` that names a resource
    (``Bundle.entry.fullUrl``, ``Bundle.entry.request.url``)."""
    if element.parent == "Reference" and element.name == "reference":
        return True
    return element.type == "uri" and _resource(value) is not None


def referenced_type(reference: str) -> str | None:
    """The resource type that a reference names; None when it names none."""
    found = _resource(reference)
    return found["type"] if found else None


def with_id(reference: str, change: Callable[[str], str]) -> str:
    """The reference with its id changed; one without a recognisable id is changed as a whole."""
    if reference.startswith("#"):
        return "#" + change(reference[1:]) if len(reference) > 1 else reference
    found = _resource(reference) or _URN.fullmatch(reference)
    if found is None:
        return change(reference)
    return f"{found['prefix']}{change(found['id'])}{found['suffix'] or ''}"


def _resource(value: str) -> re.Match[str] | None:
    return _LITERAL.fullmatch(value) or (_CONDITIONAL.fullmatch(value) if "identifier=" in value else None)
