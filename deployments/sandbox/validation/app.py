"""The sandbox validation service as an ASGI application (document 3 §6).

==============================  =================================================================================
``POST /validateResource``      a Bundle or any other resource; 200 with an OperationOutcome, valid or not.
                                ``/$validate`` and ``/fhir/$validate`` are the same
``GET /metadata``               a CapabilityStatement; ``/fhir/metadata`` is the same
==============================  =================================================================================

400: the body is no JSON, or no resource. 413: above ``max_body``. 415: not FHIR JSON. The work is done in threads.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from deployments.sandbox.common.exchange import Receive, Scope, Send, read_body
from deployments.sandbox.common.gate import Gate
from deployments.sandbox.common.json_text import as_decimal
from deployments.sandbox.common.requestlog import Request as LoggedRequest
from deployments.sandbox.common.service import DISCLAIMER, NOTE_KEY, SandboxService, respond
from deployments.sandbox.fhir.outcome import FhirProblem
from deployments.sandbox.validation.engine import NOT_CHECKED, Validator
from deployments.sandbox.validation.issue import operation_outcome
from deployments.sandbox.validation.schema import load_schema

FHIR_JSON = "application/fhir+json;charset=utf-8"
_JSON_TYPES = frozenset({"application/fhir+json", "application/json", "application/json+fhir"})
_VALIDATE = frozenset({"/validateResource", "/$validate", "/fhir/$validate"})
_METADATA = frozenset({"/metadata", "/fhir/metadata"})
_THREADS = 4

logger = logging.getLogger("sandbox.validation")


@dataclass(frozen=True)
class ValidationOptions:
    """How the service behaves."""

    serial: bool = False
    """*Quirk:* work on one request at a time; the others wait in the order they came."""
    max_body: int | None = None
    """Largest request body in bytes; a larger one is answered 413. None: no limit."""


class ValidationService:
    """Validates against the base specification of FHIR R4. It keeps nothing."""

    name = "validation"

    def __init__(self, options: ValidationOptions) -> None:
        self._options = options

    def open(self) -> None:
        """Read the definitions."""
        self._validator = Validator(load_schema())
        threads = 1 if self._options.serial else _THREADS
        self._workers = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="sandbox-validation")

    def close(self) -> None:
        """Finish what is in progress."""
        self._workers.shutdown(wait=True)

    async def admin(self, method: str, path: str, send: Send) -> bool:
        """The service has no further ``/_sandbox`` endpoint."""
        return False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; whatever goes wrong is answered with an OperationOutcome."""
        try:
            await respond(send, 200, await self._answer(scope, receive), kind=FHIR_JSON)
        except FhirProblem as problem:
            await respond(send, problem.status, problem.body(), kind=FHIR_JSON)
        except Exception as error:  # noqa: BLE001 - a server answers whatever happens
            # The text of the error, or a traceback, may quote the resource: name the place only.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            logger.error("%s in %s:%s", type(error).__name__, Path(frame.filename).name, frame.lineno)  # noqa: TRY400
            defect = FhirProblem(500, "exception", "The sandbox has a defect; its log names the place.")
            await respond(send, 500, defect.body(), kind=FHIR_JSON)

    async def _answer(self, scope: Scope, receive: Receive) -> bytes:
        method, path = scope["method"], scope["path"].rstrip("/")
        if path in _METADATA and method in ("GET", "HEAD"):
            return _capability_statement()
        if path not in _VALIDATE | _METADATA:
            raise FhirProblem(404, "not-found", "The service validates at /validateResource.")
        if path in _METADATA or method != "POST":
            raise FhirProblem(405, "not-supported", "This method is not available here.")
        self._check_head({name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]})
        body = await read_body(receive)
        if body is None:
            raise FhirProblem(400, "incomplete", "The body ended early.")
        self._check_length(len(body))
        work = partial(self._validate, body, scope["state"][NOTE_KEY])
        return await asyncio.get_running_loop().run_in_executor(self._workers, work)

    def _check_head(self, headers: dict[str, str]) -> None:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in _JSON_TYPES:
            raise FhirProblem(415, "not-supported", "Bodies are application/fhir+json.")
        if headers.get("content-encoding", "identity") != "identity":
            raise FhirProblem(415, "not-supported", "Compressed bodies are not supported.")
        announced = headers.get("content-length", "0")
        if announced.isdigit():
            self._check_length(int(announced))

    def _check_length(self, length: int) -> None:
        limit = self._options.max_body
        if limit is not None and length > limit:
            raise FhirProblem(413, "too-long", f"The body is larger than {limit} bytes.")

    def _validate(self, body: bytes, request: LoggedRequest) -> bytes:
        resource = _read(body)
        verdict = self._validator.validate(resource)
        entries = resource.get("entry")
        request.entries, request.types = len(entries) if isinstance(entries, list) else 0, dict(verdict.types)
        return operation_outcome(verdict.issues)


def _read(body: bytes) -> dict[str, Any]:
    """The body as JSON. Raises ``FhirProblem`` 400 when it is none, or no resource."""
    try:
        resource = msgspec.json.Decoder(float_hook=as_decimal).decode(body)
    except (ValueError, RecursionError):
        raise FhirProblem(400, "structure", "The body is not JSON that can be read.") from None
    if not isinstance(resource, dict) or not isinstance(resource.get("resourceType"), str):
        raise FhirProblem(400, "structure", "The body is not a resource: it has no resourceType.")
    return resource


def _capability_statement() -> bytes:
    operation = {"name": "validate", "definition": "http://hl7.org/fhir/OperationDefinition/Resource-validate"}
    return msgspec.json.encode(
        {
            "resourceType": "CapabilityStatement",
            "status": "active",
            "experimental": True,
            "date": "2025-01-01",
            "kind": "instance",
            "software": {"name": "Sluice sandbox validation service"},
            "implementation": {"description": f"{DISCLAIMER} Not checked: {'; '.join(NOT_CHECKED)}."},
            "fhirVersion": "4.0.1",
            "format": ["application/fhir+json"],
            "rest": [{"mode": "server", "documentation": DISCLAIMER, "operation": [operation]}],
        }
    )


def validation_service(options: ValidationOptions | None = None, gate: Gate | None = None) -> SandboxService:
    """The validation service in its frame, ready for ``serve_in_thread`` or the host."""
    return SandboxService(ValidationService(options or ValidationOptions()), gate)
