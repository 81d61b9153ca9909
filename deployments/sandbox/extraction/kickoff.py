"""Read the body of ``POST /fhir/$extract-data`` (document 2; document 3 §2, "kick-off")."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import msgspec

from deployments.sandbox.common.r4 import ID
from deployments.sandbox.common.request import FhirProblem
from deployments.sandbox.extraction.query import QueryError, quoted, read_query

MAX_BODY = 2 * 1024 * 1024
"""Largest body in bytes."""


@dataclass(frozen=True)
class KickOffRequest:
    """A client's request for an extraction."""

    crtdl: bytes
    patients: tuple[str, ...]
    """Ids to use instead of the cohort's; empty: use the cohort."""


def read_kickoff(body: bytes) -> KickOffRequest:
    """Read the Parameters. Raises ``FhirProblem`` 400 with all errors in the query."""
    document = _parameters(body)
    crtdl: list[bytes] = []
    patients: list[str] = []
    for entry in document.get("parameter") or ():
        name = entry.get("name") if isinstance(entry, dict) else None
        match name:
            case "crtdl":
                crtdl.append(_decoded(entry.get("valueBase64Binary")))
            case "patient":
                patients.append(_patient(entry.get("valueString")))
            case _:
                raise _refused(f"the parameter {quoted(name)} is unknown; known are crtdl and patient")
    if len(crtdl) != 1:
        raise _refused(f"exactly one crtdl parameter is required, {len(crtdl)} found")
    try:
        read_query(crtdl[0])
    except QueryError as error:
        raise _refused(*error.findings) from None
    return KickOffRequest(crtdl[0], tuple(sorted(set(patients))))


def _parameters(body: bytes) -> dict[str, Any]:
    if not body.strip():
        raise _refused("the body is empty")
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _refused("the body is not JSON") from None
    if not isinstance(document, dict) or document.get("resourceType") != "Parameters":
        raise _refused("the body is not a Parameters resource")
    if not isinstance(document.get("parameter", []), list):
        raise _refused("parameter is not a list")
    return document


def _decoded(text: object) -> bytes:
    if not isinstance(text, str):
        raise _refused("the parameter crtdl has no valueBase64Binary")
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise _refused("the parameter crtdl is not Base64") from None


def _patient(value: object) -> str:
    if not isinstance(value, str) or not ID.fullmatch(value):
        raise _refused("a patient parameter needs a valueString with the id of a Patient")
    return value


def _refused(*diagnostics: str) -> FhirProblem:
    return FhirProblem(400, "invalid", *diagnostics, severity="fatal")
