"""Read the type, the id and the references of a resource without decoding the rest."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from tasks.shared.errors import DataError

TYPE: Final = re.compile(r"[A-Z][A-Za-z]{1,63}")
ID: Final = re.compile(r"[A-Za-z0-9\-.]{1,64}")
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of msgspec for a text that it cannot read."""

REFERENCE: Final = re.compile(rb'"reference"\s*:\s*"([^"\\]*(?:\\.[^"\\]*)*)"')
"""A reference in JSON text. It cannot match inside a string, where quotes are escaped."""

_USUAL: Final = re.compile(
    rb'\s*\{\s*"resourceType"\s*:\s*"([A-Z][A-Za-z]{1,63})"\s*,\s*"id"\s*:\s*"([A-Za-z0-9\-.]{1,64})"'
)
"""Matches the beginning of nearly every resource. Then no more of it needs to be read."""


class _Head(msgspec.Struct, rename="camel", gc=False):
    resource_type: str
    id: Any = None


_head = msgspec.json.Decoder(_Head)


def parse_json(body: bytes) -> Any:
    """Return the value of a JSON body; ``None`` if it is not JSON."""
    try:
        return msgspec.json.decode(body)
    except UNREADABLE:
        return None


def object_of(value: Any) -> dict[str, Any]:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def head_of(raw: bytes | msgspec.Raw) -> tuple[str, str | None]:
    """Return type and id of a resource; the id is ``None`` if it is missing or no text.

    Raises ``DataError`` (``not-a-resource``) for anything other than a JSON object with the name of a type.
    """
    usual = _USUAL.match(raw)
    if usual is not None:
        return usual[1].decode("ascii"), usual[2].decode("ascii")
    try:
        read = _head.decode(raw)
    except UNREADABLE:
        read = None
    if read is None or TYPE.fullmatch(read.resource_type) is None:
        raise DataError("not-a-resource", "not a FHIR resource: an object with a resourceType is expected")
    return read.resource_type, read.id if isinstance(read.id, str) else None


def references_in(raw: bytes | msgspec.Raw) -> set[str]:
    """Return the different ``reference`` values in a resource or Bundle."""
    found = set(REFERENCE.findall(memoryview(raw)))
    return {msgspec.json.decode(b'"' + one + b'"') if b"\\" in one else one.decode() for one in found}


def target_of(reference: str) -> str | None:
    """Return ``Type/id`` of a literal reference, relative or absolute, without its version; ``None`` for any other."""
    parts = reference.partition("/_history/")[0].split("/")
    if len(parts) < 2 or TYPE.fullmatch(parts[-2]) is None or ID.fullmatch(parts[-1]) is None:
        return None
    return f"{parts[-2]}/{parts[-1]}"
