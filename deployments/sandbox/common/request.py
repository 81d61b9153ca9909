"""Requests to a sandbox service, its answers, and its refusals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from pydantic import Field
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from deployments.sandbox.common.requestlog import LogEntry

FHIR_JSON = "application/fhir+json;charset=utf-8"
Limit = Annotated[int, Field(ge=1)] | None
"""Largest body in bytes; None: no limit."""
DISCLAIMER = "Sandbox service for trials and tests, not for production: no real patient data belongs here."


class FhirRequest(Request):
    """A request with what FHIR reads from its head."""

    content: bytes = b""
    """The body, once ``read_content`` has read it."""

    @property
    def query(self) -> str:
        """The query as it was sent."""
        return self.url.query

    @property
    def base(self) -> str:
        """The base URL of FHIR as this client sees it, without a trailing slash."""
        return f"{str(self.base_url).rstrip('/')}/fhir"

    @property
    def media_type(self) -> str:
        """``Content-Type`` without parameters, empty when it is missing."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_strict(self) -> bool:
        """Whether the client wants to hear about every problem (``Prefer: handling=strict``)."""
        return self.prefers("handling=strict")

    def prefers(self, what: str) -> bool:
        """Whether ``Prefer`` asks for it."""
        return what.lower() in self.headers.get("prefer", "").lower().replace(" ", "")

    @property
    def log_entry(self) -> LogEntry:
        """Its entry of the request log, for entries and types of a Bundle."""
        entry: LogEntry = self.state.log_entry
        return entry

    def check_length(self, limit: int | None) -> None:
        """Raise ``FhirProblem`` when the head already says that the body will not be taken."""
        announced = self.headers.get("content-length", "0")
        if limit is not None and announced.isdigit() and int(announced) > limit:
            raise too_large(limit)
        if self.headers.get("content-encoding", "identity") != "identity":
            raise FhirProblem(415, "not-supported", "Compressed bodies are not supported.")

    async def read_content(self, limit: int | None = None) -> bytes:
        """Read the body into ``content``. Raises ``FhirProblem`` 400 when it ends early, 413 above the limit, in bytes:
        read to its end, so that the client gets to the answer, but not kept."""
        parts: list[bytes] = []
        size = 0
        try:
            async for part in self.stream():
                size += len(part)
                if limit is None or size <= limit:
                    parts.append(part)
                else:
                    parts.clear()
        except ClientDisconnect:
            raise FhirProblem(400, "incomplete", "The body ended early.") from None
        if limit is not None and size > limit:
            raise too_large(limit)
        self.content = b"".join(parts)
        return self.content


def answer(
    body: bytes = b"", status: int = 200, headers: Mapping[str, str] | None = None, kind: str = FHIR_JSON
) -> Response:
    """A complete answer; without a body it has no ``Content-Type``."""
    # Not as Starlette's media_type: it would add a charset to what a client stored as text/csv.
    return Response(body, status, ({"content-type": kind} if body else {}) | dict(headers or {}))


def outcome(code: str, *diagnostics: str, severity: str = "error", details: str | None = None) -> bytes:
    """An OperationOutcome with an issue for each text."""
    more = {} if details is None else {"details": {"text": details}}
    issues = [{"severity": severity, "code": code, "diagnostics": text} | more for text in diagnostics]
    return msgspec.json.encode({"resourceType": "OperationOutcome", "issue": issues})


class FhirProblem(Exception):  # noqa: N818 - what the client did, not what failed here
    """A request, or an entry of a batch, that is refused: HTTP status, issue code, and what a developer reads.

    The sandbox names references and ids in ``diagnostics``, as the servers it stands in for do; it never
    writes them to a log.
    """

    def __init__(
        self,
        status: int,
        code: str,
        *diagnostics: str,
        severity: str = "error",
        details: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(f"{status} {code}")
        self.status = status
        self.code = code
        self.diagnostics = diagnostics
        self.severity = severity
        self.details = details
        self.headers = headers or {}

    def outcome(self) -> bytes:
        """The OperationOutcome as JSON."""
        return outcome(self.code, *self.diagnostics, severity=self.severity, details=self.details)

    def answer(self, kind: str) -> Response:
        """The refusal as an answer."""
        return answer(self.outcome(), self.status, self.headers, kind)


def too_large(limit: int | None) -> FhirProblem:
    """The body is above the limit, in bytes."""
    return FhirProblem(413, "too-long", f"The body is larger than {limit} bytes.")


def capability_statement(
    what: str, started: str, rest: Mapping[str, Any], *, version: str | None = None, **implementation: str
) -> bytes:
    """A CapabilityStatement that says that it is a sandbox. ``started`` is a FHIR dateTime."""
    return msgspec.json.encode(
        {
            "resourceType": "CapabilityStatement",
            "status": "active",
            "experimental": True,
            "date": started,
            "kind": "instance",
            "software": {"name": f"Sluice sandbox {what}"} | ({} if version is None else {"version": version}),
            "implementation": {"description": DISCLAIMER} | implementation,
            "fhirVersion": "4.0.1",
            "format": ["application/fhir+json"],
            "rest": [{"mode": "server", "documentation": DISCLAIMER, **rest}],
        }
    )
