"""Binary content in its own media type, stored in files and never completely in memory.

FHIR R4, Binary: other content than FHIR is stored and returned unchanged. The FHIR form (Base64 in JSON) is returned if
``Accept`` or ``_format`` asks for JSON.
"""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, Response

from deployments.sandbox.common.request import FhirProblem, FhirRequest, answer, too_large
from deployments.sandbox.fhir.store import StoredVersion

_UNNAMED = "application/octet-stream"
_JSON_TYPES = frozenset({"", "application/json", "application/fhir+json", "application/json+fhir", "text/json"})


class _Wrapped(msgspec.Struct, rename="camel"):
    """A Binary in its FHIR form."""

    content_type: str = _UNNAMED
    data: bytes = b""


def has_json(request: FhirRequest) -> bool:
    """Return True if the body is FHIR JSON; a missing ``Content-Type`` counts as FHIR JSON."""
    return request.media_type in _JSON_TYPES


async def receive_file(path: Path, request: FhirRequest, limit: int | None) -> None:
    """Write the request's body to a file. Raises ``FhirProblem`` if it is too large or ends early."""
    size = 0
    with path.open("wb") as file:
        try:
            async for piece in request.stream():
                size += len(piece)
                if limit is not None and size > limit:
                    raise too_large(limit)
                file.write(piece)
        except ClientDisconnect:
            raise FhirProblem(400, "incomplete", "The body ended early.") from None


def binary_answer(stored: StoredVersion, directory: Path, request: FhirRequest) -> Response:
    """Return a Binary in the form that the client accepts. ``directory`` contains the files of raw content."""
    wants_fhir = "json" in request.headers.get("accept", "").lower() or "_format=" in request.query
    headers = stored.headers
    if stored.blob is None:
        content = stored.body or b"{}"
        if wants_fhir:
            return answer(content, headers=headers)
        try:
            wrapped = msgspec.json.decode(content, type=_Wrapped)
        except msgspec.DecodeError:
            raise FhirProblem(422, "structure", "The Binary's data is not Base64.") from None
        return answer(wrapped.data, headers=headers, kind=wrapped.content_type)
    path = directory / stored.blob
    kind = stored.content_type or _UNNAMED
    if wants_fhir:
        data = base64.b64encode(path.read_bytes()).decode()
        document = {"resourceType": "Binary", "id": stored.id, "contentType": kind, "data": data}
        return answer(msgspec.json.encode(document), headers=headers)
    return FileResponse(path, headers=headers | {"content-type": kind})
