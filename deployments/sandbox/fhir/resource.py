"""A received resource: its bytes, and the parts that the server needs to know.

The bytes stay unchanged, so that decimals keep their spelling (document 3 §1). The exceptions are values that the
server assigns: the id of a created resource, and ``urn:uuid`` references that a transaction resolves. Both are replaced
within the bytes, without parsing and serializing the resource.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from deployments.sandbox.common.r4 import ID, LITERAL, RESOURCE_TYPES
from deployments.sandbox.common.request import FhirProblem

_WHOLE = msgspec.json.Decoder(float_hook=str)
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_URN_REFERENCE = re.compile(rb'("reference"\s*:\s*")(urn:(?:uuid|oid):[^"\\]+)(")')
Document = dict[str, Any]
Identifier = tuple[str, str]
"""System (empty if there is none) and value."""


@dataclass(frozen=True)
class ReceivedResource:
    """A resource ready to be stored."""

    type: str
    id: str
    body: bytes
    document: Document

    @property
    def key(self) -> str:
        """``Type/id``."""
        return f"{self.type}/{self.id}"

    def identifiers(self) -> list[Identifier]:
        """Return the identifiers for a search; for a DocumentReference also the master identifier (R4)."""
        found: list[Identifier] = []
        for name in ("identifier", "masterIdentifier"):
            value = self.document.get(name)
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, dict) and isinstance(item.get("value"), str):
                    system = item.get("system")
                    found.append((system if isinstance(system, str) else "", item["value"]))
        return found

    def targets(self, base: str) -> set[str]:
        """Return ``Type/id`` of this server's resources that it refers to, and unresolved ``urn:`` references."""
        if self.type == "Bundle" or b"reference" not in self.body:
            return set()
        found = (local_target(reference, base) for _, reference in references(self.document))
        return {target for target in found if target is not None}

    def path_to(self, target: str, base: str) -> str:
        """Return the element that refers to a target, for example ``Observation.subject``."""
        for path, reference in references(self.document):
            if local_target(reference, base) == target:
                return ".".join((self.type, *path))
        return self.type


def read_document(body: bytes) -> Document:
    """Parse a resource for reading. Raises ``FhirProblem`` 400 without quoting the resource."""
    try:
        document = _WHOLE.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FhirProblem(400, "structure", f"The body is not JSON: {_position(error)}") from None
    if not isinstance(document, dict):
        raise FhirProblem(400, "structure", "A resource must be a JSON object.")
    if not isinstance(document.get("resourceType"), str):
        raise FhirProblem(400, "structure", "The body has no resourceType.")
    return document


def read_resource(body: bytes, wanted_type: str, wanted_id: str) -> ReceivedResource:
    """Return a resource for ``PUT Type/id``; type and id must match the body. Raises ``FhirProblem`` 400."""
    document = read_document(body)
    check_type(document, wanted_type)
    if "id" not in document:
        raise FhirProblem(400, "required", "The body of an update must contain the id of the resource.")
    if document["id"] != wanted_id:
        raise FhirProblem(400, "invalid", f"The id in the body is not the one in the URL, which is {wanted_id}.")
    return ReceivedResource(wanted_type, wanted_id, body, document)


def read_new_resource(body: bytes, wanted_type: str, new_id: str) -> ReceivedResource:
    """Return a resource for ``POST Type`` with the server's id instead of its own."""
    document = read_document(body)
    check_type(document, wanted_type)
    return ReceivedResource(wanted_type, new_id, _with_id(body, new_id), document | {"id": new_id})


def check_type(document: Mapping[str, Any], wanted: str) -> None:
    """Raise ``FhirProblem`` 400 unless the body has the type in the URL."""
    found = document["resourceType"]
    if found != wanted:
        shown = found if found in RESOURCE_TYPES else "of an unknown type"
        raise FhirProblem(400, "invalid", f"The URL is for {wanted}, but the body is {shown}.")


def check_id(value: str) -> None:
    """Raise ``FhirProblem`` 400 unless the value is a FHIR id."""
    if not ID.fullmatch(value):
        raise FhirProblem(400, "value", "An id must have 1 to 64 characters from A-Z, a-z, 0-9, - and .")


def references(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every literal reference below a node, with the path of the element that contains it."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == "reference" and isinstance(value, str):
                yield path, value
            elif isinstance(value, dict | list):
                yield from references(value, (*path, name))
    elif isinstance(node, list):
        for value in node:
            if isinstance(value, dict | list):
                yield from references(value, path)


def local_target(reference: str, base: str) -> str | None:
    """Return ``Type/id`` on this server, a ``urn:`` reference unchanged, or None for another server.

    Conditional references (``Patient?identifier=…``) and other non-literals are returned unchanged, so that they are
    reported as not found instead of being stored.
    """
    if reference.startswith("#"):
        return None
    if reference.startswith(base + "/"):
        reference = reference[len(base) + 1 :]
    elif reference.startswith("urn:"):
        return reference
    elif "://" in reference:
        return None
    literal = LITERAL.fullmatch(reference)
    return f"{literal[1]}/{literal[2]}" if literal else reference


def resolve(body: bytes, full_urls: Mapping[str, str]) -> bytes:
    """Replace the ``urn:`` references that a transaction resolves by ``Type/id``."""
    if b"urn:" not in body:
        return body

    def put(match: re.Match[bytes]) -> bytes:
        target = full_urls.get(match[2].decode())
        return match[0] if target is None else match[1] + target.encode() + match[3]

    return _URN_REFERENCE.sub(put, body)


def _with_id(body: bytes, new_id: str) -> bytes:
    members = {name: bytes(raw) for name, raw in _MEMBERS.decode(body).items()}
    quoted = msgspec.json.encode(new_id)
    if "id" not in members:
        start = body.index(b"{") + 1
        return body[:start] + b'"id":' + quoted + b"," + body[start:]
    members["id"] = quoted
    return b"{" + b",".join(msgspec.json.encode(name) + b":" + raw for name, raw in members.items()) + b"}"


def _position(error: Exception) -> str:
    """Return the position of a JSON error. msgspec's messages contain bytes and types, never values."""
    if isinstance(error, msgspec.DecodeError):
        return str(error)
    return "it is nested too deeply" if isinstance(error, RecursionError) else "it is not UTF-8"
