"""The sandbox flattening service as an ASGI application (document 3 §5).

================================================  ==============================================================
``POST /fhir/ViewDefinition/$run?_format=ndjson``  Parameters with ``viewDefinition`` and ``resources``: 200 with
                                                  NDJSON, one line per row, keyed by the names of the columns
``GET /fhir/metadata``                            the CapabilityStatement
================================================  ==============================================================

*Quirks of the deployed service,* each of which can be switched off: every failure of ``$run`` is 500, with the
exception's text in ``diagnostics`` (else 400, 406, 415, 422); ``Accept`` must be exactly the one media type; columns
without a value are omitted. A body above the limit is always 413.

All rows are computed before the answer begins, so a failure is never answered with 200.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from urllib.parse import parse_qs

from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from deployments.sandbox.common.gate import RequiredCredentials
from deployments.sandbox.common.request import FhirProblem, FhirRequest, Limit, answer, capability_statement
from deployments.sandbox.common.requestlog import LogEntry
from deployments.sandbox.common.service import SandboxService, ServiceBackend
from deployments.sandbox.flattening.problem import (
    FlatteningError,
    MediaTypeError,
    NotAcceptableError,
    RequestError,
)
from deployments.sandbox.flattening.run import cached_view_compiler, read_request, run

NDJSON = "application/x-ndjson"
_ACCEPTABLE = frozenset({NDJSON, "application/*", "*/*"})
_JSON_TYPES = frozenset({"application/fhir+json", "application/json"})


@dataclass(frozen=True)
class FlatteningOptions:
    """Behaviour of the service. The defaults are those of the deployed service."""

    errors_500: bool = True
    """*Quirk:* every failure of ``$run`` is 500."""
    exact_accept: bool = True
    """*Quirk:* ``Accept`` must match as a whole."""
    null_columns: bool = False
    """Write columns without a value as null instead of omitting them."""
    max_body: Limit = None
    """Largest request body in bytes; a larger one is answered 413. None: no limit."""


class FlatteningService(ServiceBackend):
    """Runs ViewDefinitions over the resources of a request. Keeps only compiled views."""

    name = "flattening"
    elsewhere = "Unknown path. The service has /fhir/ViewDefinition/$run and /fhir/metadata."

    def __init__(self, options: FlatteningOptions) -> None:
        self._options = options
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._view = cached_view_compiler()

    def routes(self) -> list[Route]:
        """Return routes for the operation and the CapabilityStatement."""
        return [
            self.route("/fhir/ViewDefinition/$run", self._run, "POST"),
            self.route("/fhir/metadata", self._metadata, "GET"),
        ]

    async def _metadata(self, request: FhirRequest) -> Response:
        rest = {"operation": [{"name": "run", "definition": "http://sql-on-fhir.org/OperationDefinition/$run"}]}
        return answer(capability_statement("flattening service", self._started, rest, url=request.base))

    async def _run(self, request: FhirRequest) -> Response:
        """Return the rows in chunks, without a length."""
        request.check_length(self._options.max_body)
        body = await request.read_content(self._options.max_body)
        try:
            self._check_head(request)
            parts = await self.work(partial(self._rows, body, request.log_entry))
        except FlatteningError as error:
            raise self._refusal(error) from None
        return StreamingResponse(_each(parts), headers={"content-type": NDJSON})

    def _check_head(self, request: FhirRequest) -> None:
        """Raise ``FlatteningError`` for unsupported headers or parameters."""
        accept = request.headers.get("accept")
        if self._options.exact_accept:
            if accept != NDJSON:
                raise NotAcceptableError(f"Accept must be exactly {NDJSON}")
        elif accept is not None and not any(
            kind.partition(";")[0].strip().lower() in _ACCEPTABLE for kind in accept.split(",")
        ):
            raise NotAcceptableError(f"Accept must include {NDJSON}")
        if request.media_type not in _JSON_TYPES:
            raise MediaTypeError("Content-Type must be application/fhir+json")
        if parse_qs(request.query).get("_format") not in (["ndjson"], [NDJSON]):
            raise RequestError("_format must be ndjson")

    def _rows(self, body: bytes, note: LogEntry) -> list[bytes]:
        asked = read_request(body)
        note.entries = len(asked)
        view = self._view(asked.view)
        note.types = {view.resource_type: len(asked)}
        return list(run(view, asked, null_columns=self._options.null_columns))

    def _refusal(self, error: FlatteningError) -> FhirProblem:
        if self._options.errors_500:
            return FhirProblem(500, "exception", error.diagnostics)
        return FhirProblem(error.status, error.code, error.diagnostics)


async def _each(parts: list[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def flattening_service(
    options: FlatteningOptions | None = None, gate: RequiredCredentials | None = None
) -> SandboxService:
    """Return the flattening service, ready for ``serve_in_thread`` or the host."""
    return SandboxService(FlatteningService(options or FlatteningOptions()), gate)
