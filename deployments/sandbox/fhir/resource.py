"""A resource as the server takes it in: the bytes it came in, and what must be known about them.

The bytes are kept as they are, so that decimals keep their spelling (document 3 §1). The one exception is
what the server itself must decide: the id of a created resource, and ``urn:uuid`` references that a
transaction resolves. Both are cut into the bytes, nothing is parsed and dumped.
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
"""System (empty when there is none) and value."""


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
        """What a search by ``identifier`` finds it by; for a DocumentReference the master identifier too
        (R4)."""
        found: list[Identifier] = []
        for name in ("identifier", "masterIdentifier"):
            value = self.document.get(name)
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, dict) and isinstance(item.get("value"), str):
                    system = item.get("system")
                    found.append((system if isinstance(system, str) else "", item["value"]))
        return found

    def targets(self, base: str) -> set[str]:
        """``Type/id`` of every resource of this server that it refers to, and the ``urn:`` references left in
        it."""
        if self.type == "Bundle" or b"reference" not in self.body:
            return set()
        found = (local_target(reference, base) for _, reference in references(self.document))
        return {target for target in found if target is not None}

    def path_to(self, target: str, base: str) -> str:
        """The element that refers to a target, for example ``Observation.subject``."""
        for path, reference in references(self.document):
            if local_target(reference, base) == target:
                return ".".join((self.type, *path))
        return self.type


def read_document(body: bytes) -> Document:
    """Parse a resource for looking at it. Raises ``FhirProblem`` 400 without quoting it."""
    try:
        document = _WHOLE.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FhirProblem(400, "structure", f"The body is no JSON: {_position(error)}") from None
    if not isinstance(document, dict):
        raise FhirProblem(400, "structure", "A resource is a JSON object.")
    if not isinstance(document.get("resourceType"), str):
        raise FhirProblem(400, "structure", "The body has no resourceType.")
    return document


def read_resource(body: bytes, wanted_type: str, wanted_id: str) -> ReceivedResource:
    """A resource for ``PUT Type/id``: both must be the body's own. Raises ``FhirProblem`` 400."""
    document = read_document(body)
    check_type(document, wanted_type)
    if "id" not in document:
        raise FhirProblem(400, "required", "The body of an update must contain the id of the resource.")
    if document["id"] != wanted_id:
        raise FhirProblem(400, "invalid", f"The id in the body is not the one in the URL, which is {wanted_id}.")
    return ReceivedResource(wanted_type, wanted_id, body, document)


def read_new_resource(body: bytes, wanted_type: str, new_id: str) -> ReceivedResource:
    """A resource for ``POST Type``: it gets the server's id, in place of its own where it has one."""
    document = read_document(body)
    check_type(document, wanted_type)
    return ReceivedResource(wanted_type, new_id, _with_id(body, new_id), document | {"id": new_id})


def check_type(document: Mapping[str, Any], wanted: str) -> None:
    """Raise ``FhirProblem`` 400 unless the body is of the URL's type."""
    found = document["resourceType"]
    if found != wanted:
        shown = found if found in RESOURCE_TYPES else "of an unknown type"
        raise FhirProblem(400, "invalid", f"The URL is about {wanted}, the body is {shown}.")


def check_id(value: str) -> None:
    """Raise ``FhirProblem`` 400 unless the value is a FHIR id."""
    if not ID.fullmatch(value):
        raise FhirProblem(400, "value", "An id has 1 to 64 characters out of A-Z, a-z, 0-9, - and .")


def references(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every literal reference below a node, with the path of the element that holds it."""
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
    """``Type/id`` on this server, the reference itself when it is a ``urn:``, None when it leads elsewhere.

    Conditional references (``Patient?identifier=…``) and anything else that is no literal come back as they
    are, so that they are reported as not found rather than stored unnoticed.
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
    """Put ``Type/id`` in place of the ``urn:`` references a transaction gives a meaning to."""
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
    """Where JSON ends being JSON. msgspec's texts name bytes and types, never values."""
    if isinstance(error, msgspec.DecodeError):
        return str(error)
    return "it is nested too deeply" if isinstance(error, RecursionError) else "it is not UTF-8"
