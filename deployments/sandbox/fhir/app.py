"""The sandbox FHIR server as an ASGI application. It routes requests; ``FhirEngine`` does the work.

Base path ``/fhir``. One thread uses the store.

* Resources are returned as exactly the bytes that were sent. ``meta.versionId`` and ``meta.lastUpdated`` are therefore
  not added to the body: the version is in ``ETag`` and ``response.etag``, the time in ``Last-Modified``.
* For tests, ``/_sandbox/counts`` returns the number of resources by type, and ``/_sandbox/resources`` all of them as
  NDJSON, by type and id.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from deployments.sandbox.common import request
from deployments.sandbox.common.gate import RequiredCredentials
from deployments.sandbox.common.r4 import RESOURCE_TYPES
from deployments.sandbox.common.request import FhirProblem, FhirRequest, Limit, answer, outcome
from deployments.sandbox.common.service import JSON, SandboxService, ServiceBackend
from deployments.sandbox.fhir.binary import binary_answer, has_json, receive_file
from deployments.sandbox.fhir.bundle import read_bundle
from deployments.sandbox.fhir.engine import Change, FhirEngine, IntegrityRules
from deployments.sandbox.fhir.manners import MANNERS, MannersName
from deployments.sandbox.fhir.resource import check_id
from deployments.sandbox.fhir.search import read_query, search
from deployments.sandbox.fhir.store import ResourceStore, new_blob_name

_INTERACTIONS = ("read", "update", "delete", "create", "search-type")


def capability_statement(base: str, manners: str, started: str) -> bytes:
    """Return the CapabilityStatement as JSON. ``started`` is a FHIR dateTime."""
    resources = [
        {
            "type": kind,
            "interaction": [{"code": code} for code in _INTERACTIONS],
            "versioning": "versioned-update",
            "readHistory": False,
            "updateCreate": True,
            "conditionalCreate": False,
            "searchParam": [{"name": "_id", "type": "token"}, {"name": "identifier", "type": "token"}],
        }
        for kind in sorted(RESOURCE_TYPES)
    ]
    rest = {"resource": resources, "interaction": [{"code": "transaction"}, {"code": "batch"}]}
    return request.capability_statement("FHIR server", started, rest, version=f"{manners} manners", url=base)


_PAGE = 500


@dataclass(frozen=True)
class FhirOptions:
    """Behaviour of a FHIR server, and its state directory (None: the state is discarded at the end)."""

    state: Path | None = None
    manners: MannersName = "hapi"
    references: bool = True
    """Refuse resources with references to missing resources."""
    numeric_ids: bool | None = None
    """True if clients can choose purely numeric ids; None: depends on ``manners``."""
    max_body: Limit = None
    """Largest request body in bytes; a larger one is answered 413. None: no limit."""


class FhirServer(ServiceBackend):
    """A FHIR R4 server over one store."""

    name = "fhir"
    elsewhere = "Not supported. The FHIR server is at /fhir and keeps no history."

    def __init__(self, options: FhirOptions) -> None:
        self._options = options
        self._manners = MANNERS[options.manners]
        self._started = datetime.now(UTC).isoformat(timespec="seconds")

    def open(self) -> None:
        """Open the store. Raises ``SandboxStartError``."""
        options = self._options
        numeric = self._manners.numeric_ids if options.numeric_ids is None else options.numeric_ids
        rules = IntegrityRules(self._manners, references=options.references, numeric_ids=numeric)
        self._store = ResourceStore(options.state)
        self._engine = FhirEngine(self._store, rules)
        super().open()

    def close(self) -> None:
        """Finish what is in progress and close the store."""
        super().close()
        self._store.close()

    def routes(self) -> list[Route]:
        """Return routes for transactions and for interactions with a type or a resource."""
        return [
            self.route("/fhir", self._process, "POST"),
            self.route("/fhir/metadata", self._metadata, "GET"),
            self.route("/fhir/{type}", self._search_type, "GET"),
            self.route("/fhir/{type}", self._create, "POST"),
            self.route("/fhir/{type}/_search", self._search_form, "POST"),
            self.route("/fhir/{type}/{id}", self._read, "GET"),
            self.route("/fhir/{type}/{id}", self._update, "PUT"),
            self.route("/fhir/{type}/{id}", self._delete, "DELETE"),
        ]

    def admin_routes(self) -> list[Route]:
        """Return routes for ``/_sandbox/counts`` and ``/_sandbox/resources``."""
        return [
            self.route("/counts", self._counts, "GET"),
            self.route("/resources", self._resources, "GET"),
        ]

    async def _counts(self, _request: FhirRequest) -> Response:
        return answer(msgspec.json.encode(await self.work(self._store.counts)), kind=JSON)

    async def _resources(self, _request: FhirRequest) -> Response:
        return StreamingResponse(self._lines(), headers={"content-type": "application/fhir+ndjson"})

    async def _lines(self) -> AsyncIterator[bytes]:
        after = ("", "")
        while page := await self.work(partial(self._store.page, after, _PAGE)):
            after = (page[-1].type, page[-1].id)
            # A line break in JSON text is always white space between tokens (document 3 §1).
            lines = [stored.body.replace(b"\r", b"").replace(b"\n", b"") for stored in page if stored.body]
            yield b"".join(line + b"\n" for line in lines)

    async def _metadata(self, request: FhirRequest) -> Response:
        return answer(capability_statement(request.base, self._manners.name, self._started))

    async def _process(self, request: FhirRequest) -> Response:
        await self._read_json(request)
        return await self.work(partial(self._processed, request))

    def _processed(self, request: FhirRequest) -> Response:
        bundle = read_bundle(request.content)
        entry = request.log_entry
        entry.entries, entry.types = len(bundle.operations), bundle.counts()
        wanted = request.prefers("return=representation")
        return answer(self._engine.process(bundle, request.base, representation=wanted))

    async def _search_type(self, request: FhirRequest) -> Response:
        return await self.work(partial(self._search, request, _type(request), request.query))

    async def _search_form(self, request: FhirRequest) -> Response:
        kind = _type(request)
        request.check_length(self._options.max_body)
        await request.read_content(self._options.max_body)
        return await self.work(partial(self._search, request, kind, _form(request)))

    async def _create(self, request: FhirRequest) -> Response:
        kind = _type(request)
        if kind == "Binary" and not has_json(request):
            return await self._store_raw(request, None)
        await self._read_json(request)
        if "if-none-exist" in request.headers:
            raise FhirProblem(412, "not-supported", "Conditional create is not supported.")
        change = await self.work(partial(self._engine.create, kind, request.content, request.base))
        return self._changed(request, change)

    async def _read(self, request: FhirRequest) -> Response:
        kind = _type(request)
        stored = await self.work(partial(self._engine.read, kind, request.path_params["id"]))
        if kind == "Binary":
            return await self.work(partial(binary_answer, stored, self._store.blobs, request))
        return answer(stored.body or b"", headers=stored.headers)

    async def _update(self, request: FhirRequest) -> Response:
        kind, identity = _type(request), request.path_params["id"]
        if kind == "Binary" and not has_json(request):
            return await self._store_raw(request, identity)
        await self._read_json(request)
        wanted = request.headers.get("if-match")
        change = await self.work(partial(self._engine.update, kind, identity, request.content, wanted, request.base))
        return self._changed(request, change)

    async def _delete(self, request: FhirRequest) -> Response:
        kind, identity = _type(request), request.path_params["id"]
        deleted = await self.work(partial(self._engine.delete, kind, identity, request.headers.get("if-match")))
        self._drop_blob(deleted.blob if deleted else None)
        return Response(status_code=204)

    async def _read_json(self, request: FhirRequest) -> None:
        request.check_length(self._options.max_body)
        await request.read_content(self._options.max_body)
        if not has_json(request):
            raise FhirProblem(415, "not-supported", "The body must be application/fhir+json.")

    def _search(self, request: FhirRequest, kind: str, query: str) -> Response:
        strict = self._manners.strict_search or request.is_strict
        return answer(search(self._store, read_query(kind, query, strict=strict), request.base))

    def _changed(self, request: FhirRequest, change: Change) -> Response:
        self._drop_blob(change.obsolete)
        stored = change.stored
        headers = stored.headers
        headers["location"] = f"{request.base}/{stored.type}/{stored.id}/_history/{stored.version}"
        if request.prefers("return=minimal"):
            return answer(b"", change.status, headers)
        if request.prefers("return=OperationOutcome") or stored.body is None:
            return answer(outcome("informational", "Stored.", severity="information"), change.status, headers)
        return answer(stored.body, change.status, headers)

    async def _store_raw(self, request: FhirRequest, chosen: str | None) -> Response:
        """Store a Binary under the client's id, or under a new one."""
        request.check_length(self._options.max_body)
        identity = await self.work(self._engine.new_binary_id) if chosen is None else chosen
        check_id(identity)
        name = new_blob_name()
        path = self._store.blobs / name
        wanted = request.headers.get("if-match")
        put = partial(
            self._engine.put_binary,
            identity,
            request.headers["content-type"],
            name,
            wanted,
            server_chose=chosen is None,
        )
        try:
            await receive_file(path, request, self._options.max_body)
            change = await self.work(put)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return self._changed(request, change)

    def _drop_blob(self, name: str | None) -> None:
        if name is not None:
            (self._store.blobs / name).unlink(missing_ok=True)


def fhir_service(options: FhirOptions | None = None, gate: RequiredCredentials | None = None) -> SandboxService:
    """Return the FHIR server, ready for ``serve_in_thread`` or the host."""
    return SandboxService(FhirServer(options or FhirOptions()), gate)


def _type(request: FhirRequest) -> str:
    """Return the resource type in the path. Raises ``FhirProblem`` 404."""
    kind: str = request.path_params["type"]
    if kind not in RESOURCE_TYPES:
        raise FhirProblem(404, "not-supported", "Unknown resource type.")
    return kind


def _form(request: FhirRequest) -> str:
    try:
        form = request.content.decode("ascii")
    except UnicodeDecodeError:
        raise FhirProblem(400, "value", "The form is not encoded.") from None
    return "&".join(part for part in (request.query, form) if part)
