"""How a service reads requests and answers them: what was asked, what is said, and how it says no.

A service is an ``Answering`` whose ``answer`` gives an ``Answer`` or raises ``FhirProblem``. Its work is done in
threads of its own: the event loop only moves bytes.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from deployments.sandbox.common.exchange import BodyTooLargeError, Receive, Scope, Send, read_body
from deployments.sandbox.common.service import DISCLAIMER, respond

FHIR_JSON = "application/fhir+json;charset=utf-8"
T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """A request, taken apart."""

    method: str
    segments: Sequence[str]
    """Path segments behind the base URL."""
    query: str
    headers: dict[str, str]
    base: str
    """The base URL as this client sees it, without a trailing slash."""
    body: bytes = b""

    @property
    def is_read(self) -> bool:
        """Whether the method changes nothing."""
        return self.method in ("GET", "HEAD")

    @property
    def media_type(self) -> str:
        """``Content-Type`` without parameters, empty when it is missing."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_strict(self) -> bool:
        """Whether the client wants to hear about every problem (``Prefer: handling=strict``)."""
        return "handling=strict" in self.headers.get("prefer", "").lower().replace(" ", "")

    def check_length(self, limit: int | None) -> None:
        """Raise ``FhirProblem`` when the head already says that the body will not be taken."""
        announced = self.headers.get("content-length", "0")
        if limit is not None and announced.isdigit() and int(announced) > limit:
            raise too_large(limit)
        if self.headers.get("content-encoding", "identity") != "identity":
            raise FhirProblem(415, "not-supported", "Compressed bodies are not supported.")


@dataclass(frozen=True)
class Answer:
    """A complete answer."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    kind: str = FHIR_JSON


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

    def outcome(self) -> dict[str, Any]:
        """The OperationOutcome, ready for JSON."""
        more = {} if self.details is None else {"details": {"text": self.details}}
        issues = [
            {"severity": self.severity, "code": self.code, "diagnostics": text} | more for text in self.diagnostics
        ]
        return {"resourceType": "OperationOutcome", "issue": issues}

    def answer(self, kind: str) -> Answer:
        """The refusal as an answer."""
        return Answer(self.status, msgspec.json.encode(self.outcome()), self.headers, kind)


class Answering:
    """An ASGI application with threads of its own; whatever goes wrong is answered with an OperationOutcome."""

    name: str
    kind = FHIR_JSON
    """Media type of refusals."""
    threads = 1
    _workers: ThreadPoolExecutor

    def open(self) -> None:
        """Start the threads."""
        self._workers = ThreadPoolExecutor(max_workers=self.threads, thread_name_prefix=f"sandbox-{self.name}")

    def close(self) -> None:
        """Finish what is in progress."""
        self._workers.shutdown(wait=True)

    async def work(self, function: Callable[[], T]) -> T:
        """Run a function in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, function)

    async def admin(self, method: str, path: str, send: Send) -> bool:
        """There are no further ``/_sandbox`` endpoints."""
        del method, path, send
        return False

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> Answer | None:
        """The answer to a request; None when it was sent already. Raises ``FhirProblem``."""
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        try:
            answer = await self.answer(scope, receive, send)
        except FhirProblem as problem:
            answer = problem.answer(self.kind)
        except Exception as error:  # noqa: BLE001 - a server answers whatever happens
            # The text of the error, or a traceback, may quote the resource: name the place only.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            log = logging.getLogger(f"sandbox.{self.name}")
            log.error("%s in %s:%s", type(error).__name__, Path(frame.filename).name, frame.lineno)  # noqa: TRY400
            defect = FhirProblem(500, "exception", "The sandbox has a defect; its log names the place.")
            answer = defect.answer(self.kind)
        if answer is not None:
            await respond(send, answer.status, answer.body, answer.headers, answer.kind)


def headers_of(scope: Scope) -> dict[str, str]:
    """The headers of a request by their names in lower case."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def read_call(scope: Scope, below: str = "/fhir") -> Call:
    """Take a request apart. Raises ``FhirProblem`` 404 outside of the base path."""
    path: str = scope["path"]
    if path != below and not path.startswith(f"{below}/"):
        raise FhirProblem(404, "not-found", "The FHIR server is at /fhir.")
    headers = headers_of(scope)
    server = scope["server"]
    host = headers.get("host") or f"{server[0]}:{server[1]}"
    return Call(
        method=scope["method"],
        segments=[part for part in path.removeprefix(below).split("/") if part],
        query=scope["query_string"].decode("latin-1"),
        headers=headers,
        base=f"{scope['scheme']}://{host}{below}",
    )


async def read_limited(receive: Receive, limit: int | None) -> bytes:
    """The body of a request. Raises ``FhirProblem`` 400 when it ends early, 413 above the limit, in bytes."""
    try:
        body = await read_body(receive, limit)
    except BodyTooLargeError:
        raise too_large(limit) from None
    if body is None:
        raise FhirProblem(400, "incomplete", "The body ended early.")
    return body


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
