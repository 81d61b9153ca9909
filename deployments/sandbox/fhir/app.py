"""The sandbox FHIR server as an ASGI application: it routes; the work is done by ``Engine``.

Base path ``/fhir``. Its own thread holds the store.

* Resources come back as the bytes they were sent in. ``meta.versionId`` and ``meta.lastUpdated`` are
  therefore not put into the body: the version is in ``ETag`` and in ``response.etag``, the time in
  ``Last-Modified``.
* ``/_sandbox/counts`` gives the number of resources by type, ``/_sandbox/resources`` all of them as NDJSON in
  the order of type and id; both are for tests.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from deployments.sandbox.common.answering import Answer, Answering, Call, FhirProblem, read_call, read_limited
from deployments.sandbox.common.exchange import Receive, Scope, Send
from deployments.sandbox.common.gate import Gate
from deployments.sandbox.common.r4 import RESOURCE_TYPES
from deployments.sandbox.common.requestlog import Request as LoggedRequest
from deployments.sandbox.common.service import NOTE_KEY, SandboxService, outcome, respond
from deployments.sandbox.fhir.binary import has_json, is_download, is_upload, receive_file, send_binary
from deployments.sandbox.fhir.bundle import read_bundle
from deployments.sandbox.fhir.capability import capability_statement
from deployments.sandbox.fhir.engine import Change, Engine, Rules
from deployments.sandbox.fhir.manners import MANNERS, MannersName
from deployments.sandbox.fhir.resource import check_id
from deployments.sandbox.fhir.search import read_query, search
from deployments.sandbox.fhir.store import Store, new_blob_name

_PAGE = 500


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


class FhirServer(Answering):
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
        super().open()

    def close(self) -> None:
        """Finish what is in progress and close the store."""
        super().close()
        self._store.close()

    async def admin(self, method: str, path: str, send: Send) -> bool:
        """``/_sandbox/counts`` and ``/_sandbox/resources``."""
        if method != "GET" or path not in ("counts", "resources"):
            return False
        if path == "counts":
            await respond(send, 200, msgspec.json.encode(await self.work(self._store.counts)))
            return True
        headers = [(b"content-type", b"application/fhir+ndjson")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        after = ("", "")
        while page := await self.work(partial(self._store.page, after, _PAGE)):
            after = (page[-1].type, page[-1].id)
            # A line break in JSON text is only ever white space between tokens (document 3 §1).
            lines = [stored.body.replace(b"\r", b"").replace(b"\n", b"") for stored in page if stored.body]
            text = b"".join(line + b"\n" for line in lines)
            await send({"type": "http.response.body", "body": text, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return True

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> Answer | None:
        """The answer of the engine, or of its files."""
        call = read_call(scope)
        call.check_length(self._options.max_body)
        if is_download(call):
            stored = await self.work(partial(self._engine.read, "Binary", call.segments[1]))
            await send_binary(stored, self._store.blobs, call, send)
            return None
        if is_upload(call):
            return await self._store_raw(call, receive)
        call = dataclasses.replace(call, body=await read_limited(receive, self._options.max_body))
        request: LoggedRequest = scope["state"][NOTE_KEY]
        return await self.work(partial(self._answer, call, request))

    def _answer(self, call: Call, request: LoggedRequest) -> Answer:
        is_form = call.segments[1:] == ["_search"]
        if call.method in ("POST", "PUT") and not has_json(call) and not is_form:
            raise FhirProblem(415, "not-supported", "Bodies are application/fhir+json.")
        match call.method, call.segments:
            case "POST", []:
                bundle = read_bundle(call.body)
                request.entries, request.types = len(bundle.operations), bundle.counts()
                wanted = _prefers(call, "representation")
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
                return Answer(200, stored.body or b"", stored.headers)
            case "PUT", [identity]:
                return self._changed(
                    call, self._engine.update(kind, identity, call.body, call.headers.get("if-match"), call.base)
                )
            case "DELETE", [identity]:
                deleted = self._engine.delete(kind, identity, call.headers.get("if-match"))
                self._drop_blob(deleted.blob if deleted else None)
                return Answer(204)
            case _, [] | [_]:
                raise FhirProblem(405, "not-supported", "This method is not available here.")
        raise FhirProblem(404, "not-supported", "The sandbox has no such interaction; there is no history.")

    def _search(self, call: Call, kind: str, query: str) -> Answer:
        strict = self._manners.strict_search or call.is_strict
        return Answer(200, search(self._store, read_query(kind, query, strict=strict), call.base))

    def _changed(self, call: Call, change: Change) -> Answer:
        self._drop_blob(change.obsolete)
        stored = change.stored
        headers = stored.headers
        headers["location"] = f"{call.base}/{stored.type}/{stored.id}/_history/{stored.version}"
        if _prefers(call, "minimal"):
            return Answer(change.status, b"", headers)
        if _prefers(call, "OperationOutcome") or stored.body is None:
            return Answer(change.status, outcome("informational", "Stored.", "information"), headers)
        return Answer(change.status, stored.body, headers)

    async def _store_raw(self, call: Call, receive: Receive) -> Answer:
        created = call.method == "POST"
        if created:
            identity = await self.work(self._engine.new_binary_id)
        else:
            identity = call.segments[1]
            check_id(identity)
        name = new_blob_name()
        path = self._store.blobs / name
        kind = call.headers["content-type"]
        put = partial(self._engine.put_binary, identity, kind, name, call.headers.get("if-match"), server_chose=created)
        try:
            await receive_file(path, receive, self._options.max_body)
            change = await self.work(put)
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


def _prefers(call: Call, what: str) -> bool:
    """Whether ``Prefer: return=…`` asks for it."""
    return f"return={what}".lower() in call.headers.get("prefer", "").lower().replace(" ", "")


def _form(call: Call) -> str:
    try:
        form = call.body.decode("ascii")
    except UnicodeDecodeError:
        raise FhirProblem(400, "value", "The form is not encoded.") from None
    return "&".join(part for part in (call.query, form) if part)
