"""Requests to a sandbox service, its responses, and its refusals."""

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
    """A request with FHIR's view of its head."""

    content: bytes = b""
    """The body, once ``read_content`` has read it."""

    @property
    def query(self) -> str:
        """The query string, unchanged."""
        return self.url.query

    @property
    def base(self) -> str:
        """The FHIR base URL that this client used, without a trailing slash."""
        return f"{str(self.base_url).rstrip('/')}/fhir"

    @property
    def media_type(self) -> str:
        """``Content-Type`` without parameters, empty if missing."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_strict(self) -> bool:
        """True if the client asks for errors on any problem (``Prefer: handling=strict``)."""
        return self.prefers("handling=strict")

    def prefers(self, what: str) -> bool:
        """Return True if the ``Prefer`` header contains this value."""
        return what.lower() in self.headers.get("prefer", "").lower().replace(" ", "")

    @property
    def log_entry(self) -> LogEntry:
        """Entry of the request log, for entries and types of a Bundle."""
        entry: LogEntry = self.state.log_entry
        return entry

    def check_length(self, limit: int | None) -> None:
        """Raise ``FhirProblem`` if the headers show that the body is too large or compressed."""
        announced = self.headers.get("content-length", "0")
        if limit is not None and announced.isdigit() and int(announced) > limit:
            raise too_large(limit)
        if self.headers.get("content-encoding", "identity") != "identity":
            raise FhirProblem(415, "not-supported", "Compressed bodies are not supported.")

    async def read_content(self, limit: int | None = None) -> bytes:
        """Read the body into ``content``. Raises ``FhirProblem`` 400 if the body ends early, 413 above the limit.
        A body above the limit (bytes) is read to its end, so that the client can receive the answer, but not kept."""
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
    """Return a complete response; without a body it has no ``Content-Type``."""
    # Not Starlette's media_type, which would add a charset to content stored as text/csv.
    return Response(body, status, ({"content-type": kind} if body else {}) | dict(headers or {}))


def outcome(code: str, *diagnostics: str, severity: str = "error", details: str | None = None) -> bytes:
    """Return an OperationOutcome with an issue for each text."""
    more = {} if details is None else {"details": {"text": details}}
    issues = [{"severity": severity, "code": code, "diagnostics": text} | more for text in diagnostics]
    return msgspec.json.encode({"resourceType": "OperationOutcome", "issue": issues})


class FhirProblem(Exception):  # noqa: N818 - an error of the client
    """A refused request or batch entry: HTTP status, issue code, and diagnostics for developers.

    ``diagnostics`` quotes references and ids, as the real servers do; the sandbox never writes them to a log.
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
        """Return the OperationOutcome as JSON."""
        return outcome(self.code, *self.diagnostics, severity=self.severity, details=self.details)

    def answer(self, kind: str) -> Response:
        """Return the refusal as a response."""
        return answer(self.outcome(), self.status, self.headers, kind)


def too_large(limit: int | None) -> FhirProblem:
    """Return the problem for a body above the limit, in bytes."""
    return FhirProblem(413, "too-long", f"The body is larger than {limit} bytes.")


def capability_statement(
    what: str, started: str, rest: Mapping[str, Any], *, version: str | None = None, **implementation: str
) -> bytes:
    """Return a CapabilityStatement that identifies a sandbox. ``started`` is a FHIR dateTime."""
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
