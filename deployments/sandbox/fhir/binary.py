"""Binary content in its own media type: received into a file, sent from it, never whole in memory.

FHIR R4, Binary: a body that is no FHIR goes in and comes out as it is. The FHIR form (Base64 in JSON) is
given when
``Accept`` or ``_format`` asks for JSON.
"""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec

from deployments.sandbox.common.answering import FHIR_JSON, Call, FhirProblem, too_large
from deployments.sandbox.common.exchange import Receive, Send
from deployments.sandbox.common.service import respond
from deployments.sandbox.fhir.store import Stored

_PIECE = 1 << 20
_UNNAMED = "application/octet-stream"
_JSON_TYPES = frozenset({"", "application/json", "application/fhir+json", "application/json+fhir", "text/json"})


class _Wrapped(msgspec.Struct, rename="camel"):
    """A Binary in its FHIR form."""

    content_type: str = _UNNAMED
    data: bytes = b""


def has_json(call: Call) -> bool:
    """Whether the body is FHIR JSON; a missing ``Content-Type`` counts as such."""
    return call.media_type in _JSON_TYPES


def is_upload(call: Call) -> bool:
    """Whether a request brings raw content."""
    match call.method, call.segments:
        case ("PUT", ["Binary", _]) | ("POST", ["Binary"]):
            return not has_json(call)
    return False


def is_download(call: Call) -> bool:
    """Whether a request reads one Binary."""
    return call.is_read and len(call.segments) == 2 and call.segments[0] == "Binary"


async def receive_file(path: Path, receive: Receive, limit: int | None) -> None:
    """Write the request's body to a file. Raises ``FhirProblem`` when it is too large or ends early."""
    size = 0
    with path.open("wb") as file:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise FhirProblem(400, "incomplete", "The body ended early.")
            piece: bytes = message.get("body", b"")
            size += len(piece)
            if limit is not None and size > limit:
                raise too_large(limit)
            file.write(piece)
            if not message.get("more_body", False):
                return


async def send_binary(stored: Stored, directory: Path, call: Call, send: Send) -> None:
    """Answer with a Binary in the form the client wants. ``directory`` holds the files of raw content."""
    wants_fhir = "json" in call.headers.get("accept", "").lower() or "_format=" in call.query
    headers = stored.headers
    if stored.blob is None:
        content = stored.body or b"{}"
        if wants_fhir:
            await respond(send, 200, content, headers, FHIR_JSON)
            return
        try:
            wrapped = msgspec.json.decode(content, type=_Wrapped)
        except msgspec.DecodeError:
            raise FhirProblem(422, "structure", "The Binary's data is not Base64.") from None
        await respond(send, 200, wrapped.data, headers, wrapped.content_type)
        return
    path = directory / stored.blob
    kind = stored.content_type or _UNNAMED
    if wants_fhir:
        data = base64.b64encode(path.read_bytes()).decode()
        document = {"resourceType": "Binary", "id": stored.id, "contentType": kind, "data": data}
        await respond(send, 200, msgspec.json.encode(document), headers, FHIR_JSON)
        return
    await _send_file(send, path, headers | {"content-type": kind})


async def _send_file(send: Send, path: Path, headers: dict[str, str]) -> None:
    fields = headers | {"content-length": str(path.stat().st_size)}
    pairs = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": 200, "headers": pairs})
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
