"""The sandbox FHIR server as an ASGI application: it routes; the work is done by ``Engine``.

Base path ``/fhir``. Its own thread holds the store; the event loop only moves bytes.

* Resources come back as the bytes they were sent in. ``meta.versionId`` and ``meta.lastUpdated`` are
  therefore not put into the body: the version is in ``ETag`` and in ``response.etag``, the time in
  ``Last-Modified``.
* ``/_sandbox/counts`` gives the number of resources by type, ``/_sandbox/resources`` all of them as NDJSON in
  the order of type and id; both are for tests.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from deployments.sandbox.common.exchange import Receive, Scope, Send, read_body
from deployments.sandbox.common.gate import Gate
from deployments.sandbox.common.requestlog import Request as LoggedRequest
from deployments.sandbox.common.service import NOTE_KEY, SandboxService, respond
from deployments.sandbox.fhir.binary import is_download, is_upload, receive_file, send_binary
from deployments.sandbox.fhir.bundle import read_bundle
from deployments.sandbox.fhir.call import FHIR_JSON, Answer, Call, read_call, too_large, version_headers
from deployments.sandbox.fhir.capability import capability_statement
from deployments.sandbox.fhir.engine import Change, Engine, Rules
from deployments.sandbox.fhir.manners import MANNERS, MannersName
from deployments.sandbox.fhir.outcome import FhirProblem
from deployments.sandbox.fhir.resource import check_id
from deployments.sandbox.fhir.search import read_query, search
from deployments.sandbox.fhir.store import Store, new_blob_name
from deployments.sandbox.fhir.types import RESOURCE_TYPES

_PAGE = 500

logger = logging.getLogger("sandbox.fhir")
T = TypeVar("T")


@dataclass(frozen=True)
class FhirOptions:
    """How a FHIR server behaves and where it keeps its state (None: nowhere, all is gone at the end)."""

    state: Path | None = None
    manners: MannersName = "hapi"
    references: bool = True
    """Refuse resources that refer to what is not there."""
    numeric_ids: bool | None = None
    """Whether clients may choose purely numeric ids; None: as the manners say."""
    max_body: int | None = None
    """Largest request body in bytes; a larger one is answered 413. None: no limit."""


class FhirServer:
    """A FHIR R4 server over one store."""

    name = "fhir"

    def __init__(self, options: FhirOptions) -> None:
        self._options = options
        self._manners = MANNERS[options.manners]
        self._started = datetime.now(UTC).isoformat(timespec="seconds")

    def open(self) -> None:
        """Open the store. Raises ``SandboxStartError``."""
        options = self._options
        numeric = self._manners.numeric_ids if options.numeric_ids is None else options.numeric_ids
        rules = Rules(self._manners, references=options.references, numeric_ids=numeric)
        self._store = Store(options.state)
        self._engine = Engine(self._store, rules)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandbox-fhir")

    def close(self) -> None:
        """Finish what is in progress and close the store."""
        self._worker.shutdown(wait=True)
        self._store.close()

    async def admin(self, method: str, path: str, send: Send) -> bool:
        """``/_sandbox/counts`` and ``/_sandbox/resources``."""
        if method != "GET" or path not in ("counts", "resources"):
            return False
        if path == "counts":
            await respond(send, 200, msgspec.json.encode(await self._work(self._store.counts)))
            return True
        headers = [(b"content-type", b"application/fhir+ndjson")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        after = ("", "")
        while page := await self._work(partial(self._store.page, after, _PAGE)):
            after = (page[-1].type, page[-1].id)
            # A line break in JSON text is only ever white space between tokens (document 3 §1).
            lines = [stored.body.replace(b"\r", b"").replace(b"\n", b"") for stored in page if stored.body]
            text = b"".join(line + b"\n" for line in lines)
            await send({"type": "http.response.body", "body": text, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; whatever goes wrong is answered with an OperationOutcome."""
        try:
            await self._handle(scope, receive, send)
        except FhirProblem as problem:
            await respond(send, problem.status, problem.body(), kind=FHIR_JSON)
        except Exception as error:  # noqa: BLE001 - a server answers whatever happens
            # The text of the error, or a traceback, may quote the resource: name the place only.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(frame.filename).name}:{frame.lineno}"
            logger.error("%s in %s", type(error).__name__, place)  # noqa: TRY400
            defect = FhirProblem(500, "exception", "The sandbox has a defect; its log names the place.")
            await respond(send, 500, defect.body(), kind=FHIR_JSON)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = read_call(scope)
        call.check_length(self._options.max_body)
        if is_download(call):
            stored = await self._work(partial(self._engine.read, "Binary", call.segments[1]))
            await send_binary(stored, self._store.blobs, call, send)
            return
        if is_upload(call):
            answer = await self._store_raw(call, receive)
        else:
            call = dataclasses.replace(call, body=await self._body(receive))
            request: LoggedRequest = scope["state"][NOTE_KEY]
            answer = await self._work(partial(self._answer, call, request))
        await respond(send, answer.status, answer.body, answer.headers, answer.kind)

    async def _body(self, receive: Receive) -> bytes:
        body = await read_body(receive)
        if body is None:
            raise FhirProblem(400, "incomplete", "The body ended early.")
        limit = self._options.max_body
        if limit is not None and len(body) > limit:
            raise too_large(limit)
        return body

    async def _work(self, function: Callable[[], T]) -> T:
        """Run a function in the store's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, function)

    def _answer(self, call: Call, request: LoggedRequest) -> Answer:
        is_form = call.segments[1:] == ["_search"]
        if call.method in ("POST", "PUT") and not call.has_json and not is_form:
            raise FhirProblem(415, "not-supported", "Bodies are application/fhir+json.")
        match call.method, call.segments:
            case "POST", []:
                bundle = read_bundle(call.body)
                request.entries, request.types = len(bundle.operations), bundle.counts()
                wanted = call.prefers("representation")
                return Answer(200, self._engine.process(bundle, call.base, representation=wanted))
            case "GET" | "HEAD", ["metadata"]:
                return Answer(200, capability_statement(call.base, self._manners.name, self._started))
            case _, []:
                raise FhirProblem(405, "not-supported", "The base URL takes POST with a Bundle.")
            case _, [kind, *_] if kind not in RESOURCE_TYPES:
                raise FhirProblem(404, "not-supported", "This resource type is not known.")
            case _, [kind, *rest]:
                return self._of_type(call, kind, rest)
        raise AssertionError

    def _of_type(self, call: Call, kind: str, rest: list[str]) -> Answer:
        match call.method, rest:
            case "GET" | "HEAD", []:
                return self._search(call, kind, call.query)
            case "POST", ["_search"]:
                return self._search(call, kind, _form(call))
            case "POST", []:
                if "if-none-exist" in call.headers:
                    raise FhirProblem(412, "not-supported", "Conditional create is not supported.")
                return self._changed(call, self._engine.create(kind, call.body, call.base))
            case "GET" | "HEAD", [identity]:
                stored = self._engine.read(kind, identity)
                return Answer(200, stored.body or b"", version_headers(stored))
            case "PUT", [identity]:
                return self._changed(call, self._engine.update(kind, identity, call.body, call.if_match, call.base))
            case "DELETE", [identity]:
                deleted = self._engine.delete(kind, identity, call.if_match)
                self._drop_blob(deleted.blob if deleted else None)
                return Answer(204)
            case _, [] | [_]:
                raise FhirProblem(405, "not-supported", "This method is not available here.")
        raise FhirProblem(404, "not-supported", "The sandbox has no such interaction; there is no history.")

    def _search(self, call: Call, kind: str, query: str) -> Answer:
        strict = self._manners.strict_search or "handling=strict" in call.headers.get("prefer", "")
        return Answer(200, search(self._store, read_query(kind, query, strict=strict), call.base))

    def _changed(self, call: Call, change: Change) -> Answer:
        self._drop_blob(change.obsolete)
        stored = change.stored
        headers = version_headers(stored)
        headers["location"] = f"{call.base}/{stored.type}/{stored.id}/_history/{stored.version}"
        if call.prefers("minimal"):
            return Answer(change.status, b"", headers)
        if call.prefers("OperationOutcome") or stored.body is None:
            issue = {"severity": "information", "code": "informational", "diagnostics": "Stored."}
            body = msgspec.json.encode({"resourceType": "OperationOutcome", "issue": [issue]})
            return Answer(change.status, body, headers)
        return Answer(change.status, stored.body, headers)

    async def _store_raw(self, call: Call, receive: Receive) -> Answer:
        created = call.method == "POST"
        if created:
            identity = await self._work(self._engine.new_binary_id)
        else:
            identity = call.segments[1]
            check_id(identity)
        name = new_blob_name()
        path = self._store.blobs / name
        kind = call.headers["content-type"]
        put = partial(self._engine.put_binary, identity, kind, name, call.if_match, server_chose=created)
        try:
            await receive_file(path, receive, self._options.max_body)
            change = await self._work(put)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return self._changed(call, change)

    def _drop_blob(self, name: str | None) -> None:
        if name is not None:
            (self._store.blobs / name).unlink(missing_ok=True)


def fhir_service(options: FhirOptions | None = None, gate: Gate | None = None) -> SandboxService:
    """The FHIR server in its frame, ready for ``serve_in_thread`` or the host."""
    return SandboxService(FhirServer(options or FhirOptions()), gate)


def _form(call: Call) -> str:
    try:
        form = call.body.decode("ascii")
    except UnicodeDecodeError:
        raise FhirProblem(400, "value", "The form is not encoded.") from None
    return "&".join(part for part in (call.query, form) if part)
