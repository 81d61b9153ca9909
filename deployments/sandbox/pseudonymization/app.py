"""The sandbox pseudonymization service as an ASGI application (document 3 §4).

======================================  ======================================================================
``POST /fhir/$de-identify``             a resource, or Parameters with ``resource`` and optionally ``config``:
                                        200 with the resource after the rules
``GET /fhir/metadata``                  the CapabilityStatement
======================================  ======================================================================

400: not a resource, Parameters or usable rule file. 413: body above the limit. 415: another ``Content-Type``.
*Quirk of the deployed service, kept:* a failure while the rules are applied is 500, with the value in ``diagnostics``.
Only the answer quotes it, never a log.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated

from pydantic import Field
from starlette.responses import Response
from starlette.routing import Route

from deployments.sandbox.common.gate import RequiredCredentials
from deployments.sandbox.common.json_text import encode
from deployments.sandbox.common.request import FhirProblem, FhirRequest, answer, capability_statement
from deployments.sandbox.common.requestlog import LogEntry
from deployments.sandbox.common.serve import SandboxStartError
from deployments.sandbox.common.service import SandboxService, ServiceBackend
from deployments.sandbox.data import ANONYMIZATION_RULES
from deployments.sandbox.pseudonymization.deidentify import DeIdentifier
from deployments.sandbox.pseudonymization.problem import (
    MalformedResourceError,
    ProcessingFailureError,
    RuleFileError,
)
from deployments.sandbox.pseudonymization.request import read_request
from deployments.sandbox.pseudonymization.rulefile import read_rule_file

_KEPT = 8
"""Number of cached rule files from requests."""
MAX_BODY = 30_000_000
"""Largest request body in bytes, as in the deployed service."""
_JSON_TYPES = frozenset({"application/fhir+json", "application/json"})


@dataclass(frozen=True)
class PseudonymizationOptions:
    """Behaviour of the service."""

    rules: Path = ANONYMIZATION_RULES
    """Rule file for requests without ``config``."""
    ignore_config: bool = False
    """Behave like a server before 2.34.0, which ignores the ``config`` in a request."""
    max_body: Annotated[int, Field(ge=1)] = MAX_BODY
    """Largest request body in bytes; a larger one is answered 413."""


class PseudonymizationServer(ServiceBackend):
    """Applies rule files to resources."""

    name = "pseudonymizer"
    elsewhere = "Unknown path. The service has /fhir/$de-identify and /fhir/metadata."

    def __init__(self, options: PseudonymizationOptions) -> None:
        self._options = options
        self._started = datetime.now(UTC).isoformat(timespec="seconds")

    def open(self) -> None:
        """Read the service's rule file and start its thread. Raises ``SandboxStartError``."""
        try:
            self._own = DeIdentifier(read_rule_file(self._options.rules.read_bytes()))
        except (OSError, RuleFileError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise SandboxStartError(f"the rule file {self._options.rules} cannot be used: {reason}") from None
        self._kept = lru_cache(maxsize=_KEPT)(_engine_of)
        super().open()

    def routes(self) -> list[Route]:
        """Return routes for the operation and the CapabilityStatement."""
        return [
            self.route("/fhir/$de-identify", self._deidentify, "POST"),
            self.route("/fhir/metadata", self._metadata, "GET"),
        ]

    async def _metadata(self, request: FhirRequest) -> Response:
        operation = {"name": "de-identify", "definition": f"{request.base}/OperationDefinition/de-identify"}
        rest = {"operation": [operation]}
        return answer(capability_statement("pseudonymization service", self._started, rest, url=request.base))

    async def _deidentify(self, request: FhirRequest) -> Response:
        if request.media_type not in _JSON_TYPES:
            raise FhirProblem(415, "not-supported", "The body must be application/fhir+json.")
        request.check_length(self._options.max_body)
        body = await request.read_content(self._options.max_body)
        return answer(await self.work(partial(self._after_rules, body, request.log_entry)))

    def _engine(self, config: bytes | None) -> DeIdentifier:
        """Return the rules of a request, or the service's own without ``config``. Raises ``RuleFileError``."""
        if config is None:
            return self._own
        engine = self._kept(config)
        return engine if engine.is_lasting else _engine_of(config)

    def _after_rules(self, body: bytes, note: LogEntry) -> bytes:
        try:
            request = read_request(body, with_config=not self._options.ignore_config)
            note.entries, note.types = request.entries, request.types
            return encode(self._engine(request.config).process(request.resource))
        except MalformedResourceError as error:
            raise FhirProblem(400, "processing", str(error)) from None
        except RuleFileError as error:
            raise FhirProblem(400, "processing", f"Failed to parse the received config attachment: {error}") from None
        except ProcessingFailureError as failure:
            raise FhirProblem(500, "processing", failure.diagnostics) from None


def _engine_of(config: bytes) -> DeIdentifier:
    return DeIdentifier(read_rule_file(config))


def pseudonymization_service(
    options: PseudonymizationOptions | None = None, gate: RequiredCredentials | None = None
) -> SandboxService:
    """Return the pseudonymization service, ready for ``serve_in_thread`` or the host."""
    return SandboxService(PseudonymizationServer(options or PseudonymizationOptions()), gate)
