"""The sandbox flattening service as an ASGI application (document 3 §5).

================================================  ==============================================================
``POST /fhir/ViewDefinition/$run?_format=ndjson``  Parameters with ``viewDefinition`` and ``resources``: 200 with
                                                  NDJSON, one line per row, keyed by the names of the columns
``GET /fhir/metadata``                            the CapabilityStatement
================================================  ==============================================================

*Quirks of the deployed service,* each to be switched off: every failure of ``$run`` is 500, with the text of the
exception in ``diagnostics`` (else 400, 406, 415, 422); ``Accept`` has to be the one media type exactly; columns without
a value are left out. A body above the limit is 413 in any case.

All rows are made before the answer begins: what fails is never a 200.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from urllib.parse import parse_qs

from deployments.sandbox.common.answering import (
    Answer,
    Answering,
    Call,
    FhirProblem,
    capability_statement,
    read_call,
    read_limited,
)
from deployments.sandbox.common.exchange import Receive, Scope, Send
from deployments.sandbox.common.gate import Gate
from deployments.sandbox.common.requestlog import Request as LoggedRequest
from deployments.sandbox.common.service import NOTE_KEY, SandboxService
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


class FlatteningService(Answering):
    """Runs ViewDefinitions over the resources of a request. It keeps nothing but compiled views."""

    name = "flattening"

    def __init__(self, options: FlatteningOptions) -> None:
        self._options = options
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._view = kept_views()

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> Answer | None:
        """The rows, which are sent in parts, or the CapabilityStatement."""
        call = read_call(scope)
        match call.method, call.segments:
            case "GET" | "HEAD", ["metadata"]:
                rest = {"operation": [{"name": "run", "definition": "http://sql-on-fhir.org/OperationDefinition/$run"}]}
                return Answer(200, capability_statement("flattening service", self._started, rest, url=call.base))
            case "POST", ["ViewDefinition", "$run"]:
                call.check_length(self._options.max_body)
                body = await read_limited(receive, self._options.max_body)
                try:
                    self._check_head(call)
                    rows = await self.work(partial(self._run, body, scope["state"][NOTE_KEY]))
                except FlatteningError as error:
                    raise self._refusal(error) from None
                await _stream(send, rows)
                return None
            case _, ["metadata"] | ["ViewDefinition", "$run"]:
                raise FhirProblem(405, "not-supported", "This method is not available here.")
            case _:
                raise FhirProblem(404, "not-found", "There are /fhir/ViewDefinition/$run and /fhir/metadata.")

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
        if call.media_type not in _JSON_TYPES:
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
