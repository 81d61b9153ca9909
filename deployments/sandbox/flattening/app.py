"""The sandbox flattening service as an ASGI application (document 3 §5).

================================================  ==============================================================
``POST /fhir/ViewDefinition/$run?_format=ndjson``  Parameters with ``viewDefinition`` and ``resources``: 200 with
                                                  NDJSON, one line per row, keyed by the names of the columns
``GET /fhir/metadata``                            the CapabilityStatement
================================================  ==============================================================

*Quirks of the deployed service,* each to be switched off: every failure of ``$run`` is 500, with the text of the
exception in ``diagnostics`` (else 400, 406, 415, 422); ``Accept`` has to be the one media type exactly; columns without
a value are left out. A body above the limit is 413 in any case.

The rows are made in a thread of the service's own, all of them before the answer begins: what fails is never a 200.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs

from deployments.sandbox.common.exchange import Receive, Scope, Send, read_body
from deployments.sandbox.common.gate import Gate
from deployments.sandbox.common.requestlog import Request as LoggedRequest
from deployments.sandbox.common.service import NOTE_KEY, SandboxService, respond
from deployments.sandbox.fhir.call import FHIR_JSON, Call, read_call, too_large
from deployments.sandbox.fhir.outcome import FhirProblem
from deployments.sandbox.flattening.capability import capability_statement
from deployments.sandbox.flattening.problem import (
    FlatteningError,
    MediaTypeError,
    NotAcceptableError,
    RequestError,
)
from deployments.sandbox.flattening.request import read_request
from deployments.sandbox.flattening.run import kept_views, run

NDJSON = "application/x-ndjson"
_ACCEPTABLE = frozenset({NDJSON, "application/*", "*/*"})
_JSON_TYPES = frozenset({"application/fhir+json", "application/json"})

logger = logging.getLogger("sandbox.flattening")


@dataclass(frozen=True)
class FlatteningOptions:
    """How the service behaves. The defaults are those of the deployed one."""

    errors_500: bool = True
    """*Quirk:* every failure of ``$run`` is 500."""
    exact_accept: bool = True
    """*Quirk:* ``Accept`` is compared as a whole."""
    null_columns: bool = False
    """Write columns without a value as null, instead of leaving them out."""
    max_body: int | None = None
    """Largest request body in bytes; a larger one is answered 413. None: no limit."""


class FlatteningService:
    """Runs ViewDefinitions over the resources of a request. It keeps nothing but compiled views."""

    name = "flattening"

    def __init__(self, options: FlatteningOptions) -> None:
        self._options = options
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._view = kept_views()

    def open(self) -> None:
        """Start the service's thread."""
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandbox-flattening")

    def close(self) -> None:
        """Finish what is in progress."""
        self._worker.shutdown(wait=True)

    async def admin(self, method: str, path: str, send: Send) -> bool:
        """There are no further ``/_sandbox`` endpoints."""
        del method, path, send
        return False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; whatever goes wrong is answered with an OperationOutcome."""
        try:
            await self._answer(scope, receive, send)
        except FhirProblem as problem:
            await respond(send, problem.status, problem.body(), kind=FHIR_JSON)
        except FlatteningError as error:
            refusal = self._refusal(error)
            await respond(send, refusal.status, refusal.body(), kind=FHIR_JSON)
        except Exception as error:  # noqa: BLE001 - a server answers whatever happens
            # The text of the error, or a traceback, may quote the resource: name the place only.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            logger.error("%s in %s:%s", type(error).__name__, Path(frame.filename).name, frame.lineno)  # noqa: TRY400
            defect = FhirProblem(500, "exception", "The sandbox has a defect; its log names the place.")
            await respond(send, 500, defect.body(), kind=FHIR_JSON)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = read_call(scope)
        match call.method, call.segments:
            case "GET" | "HEAD", ["metadata"]:
                await respond(send, 200, capability_statement(call.base, self._started), kind=FHIR_JSON)
            case "POST", ["ViewDefinition", "$run"]:
                body = await self._body(call, receive)
                note: LoggedRequest = scope["state"][NOTE_KEY]
                loop = asyncio.get_running_loop()
                await _stream(send, await loop.run_in_executor(self._worker, self._run, body, note))
            case _, ["metadata"] | ["ViewDefinition", "$run"]:
                raise FhirProblem(405, "not-supported", "This method is not available here.")
            case _:
                raise FhirProblem(404, "not-found", "There are /fhir/ViewDefinition/$run and /fhir/metadata.")

    async def _body(self, call: Call, receive: Receive) -> bytes:
        limit = self._options.max_body
        call.check_length(limit)
        body = await read_body(receive)
        if body is None:
            raise FhirProblem(400, "incomplete", "The body ended early.")
        if limit is not None and len(body) > limit:
            raise too_large(limit)
        self._check_head(call)
        return body

    def _check_head(self, call: Call) -> None:
        """Raises ``FlatteningError``."""
        accept = call.headers.get("accept")
        if self._options.exact_accept:
            if accept != NDJSON:
                raise NotAcceptableError(f"Accept has to be {NDJSON}, and nothing else")
        elif accept is not None and not any(
            kind.partition(";")[0].strip().lower() in _ACCEPTABLE for kind in accept.split(",")
        ):
            raise NotAcceptableError(f"the answer would be {NDJSON}")
        if call.headers.get("content-type", "").partition(";")[0].strip().lower() not in _JSON_TYPES:
            raise MediaTypeError("Content-Type has to be application/fhir+json")
        if parse_qs(call.query).get("_format") not in (["ndjson"], [NDJSON]):
            raise RequestError("_format has to be ndjson")

    def _run(self, body: bytes, note: LoggedRequest) -> list[bytes]:
        request = read_request(body)
        note.entries = len(request)
        view = self._view(request.view)
        note.types = {view.resource_type: len(request)}
        return list(run(view, request, null_columns=self._options.null_columns))

    def _refusal(self, error: FlatteningError) -> FhirProblem:
        if self._options.errors_500:
            return FhirProblem(500, "exception", error.diagnostics)
        return FhirProblem(error.status, error.code, error.diagnostics)


async def _stream(send: Send, parts: list[bytes]) -> None:
    """Send an answer in parts, its length unannounced."""
    headers = [(b"content-type", NDJSON.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def flattening_service(options: FlatteningOptions | None = None, gate: Gate | None = None) -> SandboxService:
    """The flattening service in its frame, ready for ``serve_in_thread`` or the host."""
    return SandboxService(FlatteningService(options or FlatteningOptions()), gate)
