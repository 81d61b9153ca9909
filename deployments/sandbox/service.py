"""The frame around every sandbox service: faults, a log of requests, and FHIR's form of refusals.

``/_sandbox/faults``: ``PUT`` a JSON list of rules; an empty one ends all faults.
``/_sandbox/requests``: ``GET`` the requests so far, ``DELETE`` them.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.sandbox.faults import FaultRule, choose, strike

FHIR_JSON: Final = "application/fhir+json"
JSON: Final = "application/json"
JSON_TYPES: Final = frozenset({"", "application/json", "application/fhir+json"})
NOTICE: Final = "Sandbox service for trials and tests, not for production: no real patient data belongs here."
_ONE_LINE: Final = 120
Json = dict[str, Any]


class FhirProblem(Exception):  # noqa: N818 - an error of the client
    """A refused request: HTTP status, issue code, and a diagnostics text for each issue.

    The texts quote references and ids, as the real servers do; the sandbox never writes them to a log.
    """

    def __init__(self, status: int, code: str, *diagnostics: str, severity: str = "error") -> None:
        super().__init__(f"{status} {code}")
        self.status = status
        self.code = code
        self.diagnostics = diagnostics
        self.severity = severity

    def answer(self) -> Response:
        """Return the refusal as an OperationOutcome."""
        return json_answer(outcome(self.code, *self.diagnostics, severity=self.severity), self.status)


def outcome(code: str, *diagnostics: str, severity: str = "error") -> Json:
    """Return an OperationOutcome with an issue for each text."""
    issues = [{"severity": severity, "code": code, "diagnostics": text} for text in diagnostics]
    return {"resourceType": "OperationOutcome", "issue": issues}


def json_answer(
    document: Any, status: int = 200, headers: Mapping[str, str] | None = None, kind: str = FHIR_JSON
) -> Response:
    """Return a JSON response. ``document`` may contain ``msgspec.Raw``."""
    return Response(msgspec.json.encode(document), status, {"content-type": kind} | dict(headers or {}))


def operations(*names: str) -> list[Json]:
    """Return operations for a CapabilityStatement."""
    return [{"name": name, "definition": f"https://sandbox.example/OperationDefinition/{name}"} for name in names]


class LogEntry(msgspec.Struct, kw_only=True):
    """One request, without payload, query and headers."""

    method: str
    path: str
    status: int | None = None
    entries: int | None = None
    """Entries of a Bundle."""


@dataclass(frozen=True)
class Call:
    """A request whose body was read, as the services see it."""

    request: Request
    body: bytes
    entry: LogEntry

    @property
    def root(self) -> str:
        """Return the URL of the service that this client used, without a trailing slash."""
        return f"{self.request.url.scheme}://{self.request.url.netloc}{self.request.scope.get('root_path', '')}"

    @property
    def media_type(self) -> str:
        """Return ``Content-Type`` without parameters, empty if missing."""
        return self.request.headers.get("content-type", "").partition(";")[0].strip().lower()

    def check_json(self) -> None:
        """Raise ``FhirProblem`` 415 unless the body is declared as JSON."""
        if self.media_type not in JSON_TYPES:
            raise FhirProblem(415, "not-supported", "The body must be application/fhir+json.")

    def document(self) -> Any:
        """Return the body as JSON, numbers as Python's. Raises ``FhirProblem`` 400."""
        try:
            return msgspec.json.decode(self.body)
        except (ValueError, RecursionError):
            raise FhirProblem(400, "structure", "The body is not JSON.") from None


Handler = Callable[[Call], Response]
Endpoint = tuple[str, str, Handler]
"""Method, path and handler."""


@dataclass
class SandboxService:
    """An ASGI application: a service with its frame. Handlers run in threads; the event loop only moves bytes."""

    name: str
    endpoints: Sequence[Endpoint]
    admin: Sequence[Endpoint] = ()
    """More ``/_sandbox`` endpoints."""
    opened: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    """Context in which the service works; whoever serves it enters it first. May raise ``SandboxStartError``."""
    max_body: int | None = None
    """Largest request body in bytes; a larger one is answered 413."""
    rest: Json = field(default_factory=dict)
    """Members of the one ``rest`` entry of its CapabilityStatement."""
    faults: list[FaultRule] = field(default_factory=list)
    log: list[LogEntry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        admin: list[Endpoint] = [
            ("PUT", "/_sandbox/faults", self._faults), ("GET", "/_sandbox/requests", self._requests),
            ("DELETE", "/_sandbox/requests", self._requests), *self.admin,
        ]  # fmt: skip
        self._admin = _application(admin)
        metadata: list[Endpoint] = [("GET", path, self._metadata) for path in ("/fhir/metadata", "/metadata")]
        self._inner = _application([("GET", "/", self._about), *metadata, *self.endpoints])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        try:
            body = await Request(scope, receive).body()
        except ClientDisconnect:
            return
        path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        entry = LogEntry(method=scope["method"], path=path)
        scope["sandbox"] = (body, entry)
        if path.startswith("/_sandbox/"):
            await self._admin(scope, receive, send)
            return
        self.log.append(entry)
        await self._serve(scope, receive, _noting(entry, send))

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, entry = scope["sandbox"]
        rule = choose(self.faults, entry.method, entry.path, body)
        inner: ASGIApp = self._inner
        if self.max_body is not None and len(body) > self.max_body:
            inner = FhirProblem(413, "too-long", f"The body is larger than {self.max_body} bytes.").answer()
        if rule is None:
            await inner(scope, receive, send)
        else:
            await strike(rule, inner, scope, receive, send)

    def _about(self, _call: Call) -> Response:
        return json_answer({"service": self.name, "sandbox": True, "notice": NOTICE}, kind=JSON)

    def _metadata(self, call: Call) -> Response:
        return json_answer({
            "resourceType": "CapabilityStatement", "status": "active", "experimental": True, "date": self.started,
            "kind": "instance", "software": {"name": f"Sluice sandbox {self.name}"},
            "implementation": {"description": NOTICE, "url": call.root},
            "fhirVersion": "4.0.1", "format": [FHIR_JSON],
            "rest": [{"mode": "server", "documentation": NOTICE, **self.rest}],
        })  # fmt: skip

    def _faults(self, call: Call) -> Response:
        try:
            self.faults = msgspec.json.decode(call.body, type=list[FaultRule])
        except ValueError as error:
            raise FhirProblem(400, "invalid", str(error)) from None
        return Response(status_code=204)

    def _requests(self, call: Call) -> Response:
        if call.request.method == "GET":
            return json_answer({"requests": list(self.log)}, kind=JSON)
        self.log.clear()
        return Response(status_code=204)


def _application(endpoints: Sequence[Endpoint]) -> Starlette:
    methods: dict[str, dict[str, Handler]] = {}
    for method, path, handler in endpoints:
        methods.setdefault(path, {})[method] = handler
    routes = [Route(path, _endpoint(handlers), methods=[*handlers]) for path, handlers in methods.items()]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _elsewhere})
    app.router.redirect_slashes = False
    return app


def _endpoint(handlers: Mapping[str, Handler]) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        body, entry = request.scope["sandbox"]
        handler = handlers["GET" if request.method == "HEAD" else request.method]
        return await run_in_threadpool(_answered, handler, Call(request, body, entry))

    return answer


def _answered(handler: Handler, call: Call) -> Response:
    try:
        return handler(call)
    except FhirProblem as problem:
        return problem.answer()
    except Exception as error:  # noqa: BLE001 - a server answers whatever happens
        log_place(error)
        return FhirProblem(500, "exception", "Internal error in the sandbox; its log gives the location.").answer()


def quoted(text: object) -> str:
    """Return a piece of a request on one line, cut where it is long."""
    line = " ".join(str(text).split())
    return line if len(line) <= _ONE_LINE else line[: _ONE_LINE - 1] + "…"


def log_place(error: Exception) -> str:
    """Log class and place of an unexpected error and return them. Its text may quote a resource and is left out."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}"
    logging.getLogger("sandbox").error("%s", place)
    return place


async def _elsewhere(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    return FhirProblem(status, "not-found", "The sandbox has nothing at this path, or not for this method.").answer()


def _noting(entry: LogEntry, send: Send) -> Send:
    async def noted(message: Message) -> None:
        if message["type"] == "http.response.start":
            entry.status = message["status"]
        await send(message)

    return noted
