"""The sandbox FHIR server over HTTP, at ``/fhir``, JSON only.

It takes transactions of PUT entries, PUT of single resources, and Binaries in their own media type; it searches by
``identifier``. It answers as HAPI JPA does, or as Blaze for a missing reference. Resources come back as the bytes that
were sent: the version is in ``ETag``.
"""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

import msgspec
from starlette.responses import Response

from deployments.sandbox.fhir.store import ResourceStore, Stored
from deployments.sandbox.fhir.transaction import MEDIA, Changes, Manners, read_resource
from deployments.sandbox.r4 import ID, resource_types
from deployments.sandbox.service import (
    FHIR_JSON,
    JSON_TYPES,
    Call,
    Endpoint,
    FhirProblem,
    Json,
    SandboxService,
    json_answer,
)

_INTERACTIONS: Final = [{"code": code} for code in ("read", "update", "search-type")]
_PARAMETERS: Final = [{"name": "identifier", "type": "token"}]
_SEPARATOR: Final = re.compile(r"(?<!\\),")
_ESCAPED: Final = re.compile(r"\\([\\,|$])")


class _FhirServer:
    def __init__(self, state: Path | None, manners: Manners) -> None:
        self._state = state
        self._manners: Manners = manners
        self._lock = threading.Lock()
        one = "/fhir/{type}/{id}"
        endpoints: list[Endpoint] = [
            ("POST", "/fhir", self._locked(self._transaction)), ("GET", "/fhir/{type}", self._locked(self._search)),
            ("GET", one, self._locked(self._read)), ("PUT", one, self._locked(self._update)),
        ]  # fmt: skip
        admin: list[Endpoint] = [("GET", "/_sandbox/resources", self._locked(self._resources))]
        parts = {"interaction": _INTERACTIONS, "updateCreate": True, "searchParam": _PARAMETERS}
        resources = [{"type": kind} | parts for kind in sorted(resource_types())]
        rest = {"resource": resources, "interaction": [{"code": "transaction"}]}
        self.service = SandboxService("fhir-server", endpoints, admin, opened=self._opened, rest=rest)

    @contextmanager
    def _opened(self) -> Iterator[None]:
        self._store = ResourceStore(self._state)
        self._changes = Changes(self._store, self._manners)
        try:
            yield
        finally:
            self._store.close()

    def _locked(self, handler: Callable[[Call], Response]) -> Callable[[Call], Response]:
        return partial(self._in_turn, handler)

    def _in_turn(self, handler: Callable[[Call], Response], call: Call) -> Response:
        with self._lock:
            return handler(call)

    def _transaction(self, call: Call) -> Response:
        call.check_json()
        call.entry.entries, answer = self._changes.transaction(call.body)
        return json_answer(answer)

    def _update(self, call: Call) -> Response:
        kind, identity = _type(call), call.request.path_params["id"]
        if kind == "Binary" and call.media_type not in JSON_TYPES:
            if not ID.fullmatch(identity):
                raise FhirProblem(400, "invalid", "This is not a valid id.")
            with self._store.transaction():
                stored, is_new = self._store.put(kind, identity, call.body, call.request.headers["content-type"], [])
        else:
            call.check_json()
            stored, is_new = self._changes.put(read_resource(call.body, kind, identity, self._manners))
        location = f"{call.root}/fhir/{kind}/{identity}/_history/{stored.version}"
        headers = stored.headers | {"location": location}
        return Response(status_code=201 if is_new else 200, headers=headers)

    def _read(self, call: Call) -> Response:
        kind, identity = _type(call), call.request.path_params["id"]
        stored = self._store.get(kind, identity)
        if stored is None:
            raise FhirProblem(404, "not-found", f"HAPI-2001: Resource {kind}/{identity} is not known")
        if kind == "Binary":
            return _binary(stored, call)
        return Response(stored.body, headers=stored.headers | {"content-type": FHIR_JSON})

    def _search(self, call: Call) -> Response:
        """Search; a resource matches if it has any of the identifiers."""
        kind = _type(call)
        given = parse_qsl(call.request.url.query, keep_blank_values=True)
        for name in {name for name, _ in given} - {"identifier", "_summary", "_format", "_count", "_sort"}:
            text = f"The sandbox does not know the search parameter {name!r}: identifier is the one that it knows."
            raise FhirProblem(400, "not-supported", text)
        tokens = [each for name, value in given if name == "identifier" for each in _SEPARATOR.split(value)]
        found = self._store.search(kind, [_ESCAPED.sub(r"\1", token) for token in tokens])
        bundle: Json = {"resourceType": "Bundle", "type": "searchset", "total": len(found)}
        if found and ("_summary", "count") not in given:
            base = f"{call.root}/fhir/{kind}"
            bodies = ((f"{base}/{each.id}", each.body) for each in found if each.media == MEDIA)
            bundle["entry"] = [{"fullUrl": url, "resource": msgspec.Raw(body)} for url, body in bodies]
        return json_answer(bundle)

    def _resources(self, _call: Call) -> Response:
        # A line break in JSON text is always white space between tokens.
        bodies = (each.body for each in self._store.all() if each.media == MEDIA)
        lines = [body.replace(b"\r", b"").replace(b"\n", b"") + b"\n" for body in bodies]
        return Response(b"".join(lines), headers={"content-type": "application/fhir+ndjson"})


def _type(call: Call) -> str:
    kind = str(call.request.path_params["type"])
    if kind not in resource_types():
        raise FhirProblem(404, "not-supported", "Unknown resource type.")
    return kind


def _binary(stored: Stored, call: Call) -> Response:
    """Return the content of a Binary; if it was sent as FHIR JSON and the client accepts JSON, return this JSON."""
    body, kind = stored.body, stored.media
    if stored.media == MEDIA and "json" not in call.request.headers.get("accept", ""):
        document = msgspec.json.decode(body)
        body, kind = base64.b64decode(document.get("data", "")), document.get("contentType", "")
    return Response(body, headers=stored.headers | {"content-type": kind})


def fhir_service(*, state: Path | None = None, manners: Manners = "hapi") -> SandboxService:
    """Return the FHIR server; without a ``state`` directory it forgets everything at its end."""
    return _FhirServer(state, manners).service
