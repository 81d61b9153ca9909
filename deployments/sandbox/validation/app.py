"""The sandbox validation service as an ASGI application (document 3 §6).

==============================  =================================================================================
``POST /validateResource``      a Bundle or any other resource; 200 with an OperationOutcome, valid or not.
                                ``/$validate`` and ``/fhir/$validate`` are the same
``GET /metadata``               a CapabilityStatement; ``/fhir/metadata`` is the same
==============================  =================================================================================

400: the body is not JSON or not a resource. 413: above ``max_body``. 415: not FHIR JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from deployments.sandbox.common.definitions.schema import load_schema
from deployments.sandbox.common.gate import RequiredCredentials
from deployments.sandbox.common.json_text import as_decimal
from deployments.sandbox.common.request import DISCLAIMER, FhirProblem, FhirRequest, Limit, answer, capability_statement
from deployments.sandbox.common.requestlog import LogEntry
from deployments.sandbox.common.service import SandboxService, ServiceBackend
from deployments.sandbox.validation.engine import NOT_CHECKED, ResourceValidator
from deployments.sandbox.validation.issue import operation_outcome

_JSON_TYPES = frozenset({"application/fhir+json", "application/json", "application/json+fhir"})
_VALIDATE = ("/validateResource", "/$validate", "/fhir/$validate")
_METADATA = ("/metadata", "/fhir/metadata")
_THREADS = 4


@dataclass(frozen=True)
class ValidationOptions:
    """Behaviour of the service."""

    serial: bool = False
    """*Quirk:* process one request at a time; the others wait in order of arrival."""
    max_body: Limit = None
    """Largest request body in bytes; a larger one is answered 413. None: no limit."""


class ValidationService(ServiceBackend):
    """Validates against the base specification of FHIR R4. Keeps no data."""

    name = "validation"
    elsewhere = "Unknown path. The service is at /validateResource."

    def __init__(self, options: ValidationOptions) -> None:
        self._options = options
        self.threads = 1 if options.serial else _THREADS

    def open(self) -> None:
        """Read the definitions."""
        self._validator = ResourceValidator(load_schema())
        super().open()

    def routes(self) -> list[Route]:
        """Return routes for the operation under its names, and the CapabilityStatement."""
        validate = [self.route(path, self._validate, "POST") for path in _VALIDATE]
        return validate + [self.route(path, self._metadata, "GET") for path in _METADATA]

    async def _metadata(self, _request: FhirRequest) -> Response:
        operation = {"name": "validate", "definition": "http://hl7.org/fhir/OperationDefinition/Resource-validate"}
        about = f"{DISCLAIMER} Not checked: {'; '.join(NOT_CHECKED)}."
        rest = {"operation": [operation]}
        return answer(capability_statement("validation service", "2025-01-01", rest, description=about))

    async def _validate(self, request: FhirRequest) -> Response:
        if request.media_type not in _JSON_TYPES:
            raise FhirProblem(415, "not-supported", "The body must be application/fhir+json.")
        request.check_length(self._options.max_body)
        body = await request.read_content(self._options.max_body)
        return answer(await self.work(partial(self._found, body, request.log_entry)))

    def _found(self, body: bytes, note: LogEntry) -> bytes:
        resource = _read(body)
        verdict = self._validator.validate(resource)
        entries = resource.get("entry")
        note.entries, note.types = len(entries) if isinstance(entries, list) else 0, dict(verdict.types)
        return operation_outcome(verdict.issues)


def _read(body: bytes) -> dict[str, Any]:
    """Parse the body. Raises ``FhirProblem`` 400 unless it is a resource in JSON."""
    try:
        resource = msgspec.json.Decoder(float_hook=as_decimal).decode(body)
    except (ValueError, RecursionError):
        raise FhirProblem(400, "structure", "The body is not JSON that can be read.") from None
    if not isinstance(resource, dict) or not isinstance(resource.get("resourceType"), str):
        raise FhirProblem(400, "structure", "The body is not a resource: it has no resourceType.")
    return resource


def validation_service(
    options: ValidationOptions | None = None, gate: RequiredCredentials | None = None
) -> SandboxService:
    """Return the validation service, ready for ``serve_in_thread`` or the host."""
    return SandboxService(ValidationService(options or ValidationOptions()), gate)
