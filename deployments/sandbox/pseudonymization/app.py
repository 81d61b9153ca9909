"""The sandbox pseudonymization service as an ASGI application (document 3 §4).

======================================  ======================================================================
``POST /fhir/$de-identify``             a resource, or Parameters with ``resource`` and perhaps ``config``: 200
                                        with the resource after the rules
``GET /fhir/metadata``                  the CapabilityStatement
======================================  ======================================================================

Refused are 400 what is not a resource, Parameters or a usable rule file, 413 a body above the limit, 415 another
``Content-Type``. *Quirk of the deployed service, kept:* whatever fails while the rules are applied is 500, with the
offending value in ``diagnostics``. Only the answer quotes it, never a log.

The rules are applied in a thread of the service's own: the event loop only moves bytes.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from deployments.sandbox.common.exchange import Receive, Scope, Send, read_body
from deployments.sandbox.common.gate import Gate
from deployments.sandbox.common.json_text import encode
from deployments.sandbox.common.requestlog import Request as LoggedRequest
from deployments.sandbox.common.serve import SandboxStartError
from deployments.sandbox.common.service import NOTE_KEY, SandboxService, respond
from deployments.sandbox.data import ANONYMIZATION_RULES
from deployments.sandbox.fhir.call import Answer, Call, read_call, too_large
from deployments.sandbox.fhir.outcome import FhirProblem
from deployments.sandbox.pseudonymization.capability import capability_statement
from deployments.sandbox.pseudonymization.engines import Engines
from deployments.sandbox.pseudonymization.problem import (
    MalformedResourceError,
    ProcessingFailureError,
    RuleFileError,
)
from deployments.sandbox.pseudonymization.request import read_request

MAX_BODY = 30_000_000
"""Largest request body in bytes, as the deployed service has it."""
_JSON_TYPES = frozenset({"application/fhir+json", "application/json"})

logger = logging.getLogger("sandbox.pseudonymization")


@dataclass(frozen=True)
class PseudonymizationOptions:
    """How the service behaves."""

    rules: Path = ANONYMIZATION_RULES
    """The service's own rule file, for requests that bring none."""
    ignore_config: bool = False
    """Be a server before 2.34.0: a ``config`` in a request is not even looked at."""
    max_body: int = MAX_BODY
    """Largest request body in bytes; a larger one is answered 413."""


class PseudonymizationServer:
    """Applies rule files to resources."""

    name = "pseudonymizer"

    def __init__(self, options: PseudonymizationOptions) -> None:
        self._options = options
        self._started = datetime.now(UTC).isoformat(timespec="seconds")

    def open(self) -> None:
        """Read the service's own rules and start its thread. Raises ``SandboxStartError``."""
        try:
            self._engines = Engines(self._options.rules.read_bytes())
        except (OSError, RuleFileError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise SandboxStartError(f"the rule file {self._options.rules} cannot be used: {reason}") from None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandbox-pseudonymizer")

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
            answer = await self._answer(scope, receive)
        except FhirProblem as problem:
            answer = Answer(problem.status, problem.body())
        except Exception as error:  # noqa: BLE001 - a server answers whatever happens
            # The text of the error, or a traceback, may quote the resource: name the place only.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(frame.filename).name}:{frame.lineno}"
            logger.error("%s in %s", type(error).__name__, place)  # noqa: TRY400
            answer = Answer(500, FhirProblem(500, "exception", "The sandbox has a defect; its log names it.").body())
        await respond(send, answer.status, answer.body, answer.headers, answer.kind)

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        call = read_call(scope)
        match call.method, call.segments:
            case "GET" | "HEAD", ["metadata"]:
                return Answer(200, capability_statement(call.base, self._started))
            case "POST", ["$de-identify"]:
                body = await self._body(call, receive)
                note: LoggedRequest = scope["state"][NOTE_KEY]
                loop = asyncio.get_running_loop()
                return Answer(200, await loop.run_in_executor(self._worker, self._deidentify, body, note))
            case _, ["metadata"] | ["$de-identify"]:
                raise FhirProblem(405, "not-supported", "This method is not available here.")
        raise FhirProblem(404, "not-found", "There are /fhir/$de-identify and /fhir/metadata.")

    async def _body(self, call: Call, receive: Receive) -> bytes:
        if call.headers.get("content-type", "").partition(";")[0].strip().lower() not in _JSON_TYPES:
            raise FhirProblem(415, "not-supported", "Bodies are application/fhir+json.")
        call.check_length(self._options.max_body)
        body = await read_body(receive)
        if body is None:
            raise FhirProblem(400, "incomplete", "The body ended early.")
        if len(body) > self._options.max_body:
            raise too_large(self._options.max_body)
        return body

    def _deidentify(self, body: bytes, note: LoggedRequest) -> bytes:
        try:
            request = read_request(body, with_config=not self._options.ignore_config)
            note.entries, note.types = request.entries, request.types
            engine = self._engines.for_config(request.config)
            return encode(engine.process(request.resource))
        except MalformedResourceError as error:
            raise FhirProblem(400, "processing", str(error)) from None
        except RuleFileError as error:
            raise FhirProblem(400, "processing", f"Failed to parse the received config attachment: {error}") from None
        except ProcessingFailureError as failure:
            raise FhirProblem(500, "processing", failure.diagnostics) from None


def pseudonymization_service(
    options: PseudonymizationOptions | None = None, gate: Gate | None = None
) -> SandboxService:
    """The service in its frame, ready for ``serve_in_thread`` or the host."""
    return SandboxService(PseudonymizationServer(options or PseudonymizationOptions()), gate)
