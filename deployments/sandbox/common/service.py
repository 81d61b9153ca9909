"""The application around every sandbox service: credentials, faults, request log, and the ``/_sandbox`` endpoints.

==========================  ===============================================================
``GET /``                   name of the service, and a note that it is not for production
``/_sandbox/faults``        ``PUT`` a JSON list of rules, ``GET`` them with counters, ``DELETE`` them
``/_sandbox/requests``      ``GET`` the requests so far, ``DELETE`` to reset the counters
``/_sandbox/…``             further endpoints of a service, see its ``admin_routes``
==========================  ===============================================================

The ``/_sandbox`` endpoints need no credentials, get no faults and are not counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Message, Receive, Scope, Send

from deployments.sandbox.common.connection import HttpExchange, read_body, replay
from deployments.sandbox.common.faults import FaultError, FaultPlan
from deployments.sandbox.common.gate import RequiredCredentials
from deployments.sandbox.common.request import DISCLAIMER, FHIR_JSON, FhirProblem, FhirRequest, answer, outcome
from deployments.sandbox.common.requestlog import LogEntry, RequestLog
from deployments.sandbox.common.serve import ERROR_PREFIX

JSON = "application/json"
T = TypeVar("T")


class ServiceBackend(ABC):
    """A service that does its work in its own threads; the event loop only moves bytes."""

    name: str
    """Short name, as in ``urls``."""
    kind = FHIR_JSON
    """Media type of refusals."""
    threads = 1
    elsewhere: str
    """Text of the answer to an unknown path."""
    _workers: ThreadPoolExecutor

    def open(self) -> None:
        """Open the state and start the threads; called once before the first request."""
        self._workers = ThreadPoolExecutor(max_workers=self.threads, thread_name_prefix=f"sandbox-{self.name}")

    def close(self) -> None:
        """Finish requests in progress and close the state."""
        self._workers.shutdown(wait=True)

    async def work(self, function: Callable[[], T]) -> T:
        """Run a function in one of the threads and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, function)

    @abstractmethod
    def routes(self) -> Sequence[Route]:
        """Return the routes of the service, made by ``route``."""

    def admin_routes(self) -> Sequence[Route]:
        """Return additional ``/_sandbox`` endpoints."""
        return ()

    def route(self, path: str, handler: Callable[[FhirRequest], Awaitable[Response]], method: str) -> Route:
        """Return a route whose handler may raise ``FhirProblem``; any other exception is answered 500."""
        return Route(path, partial(self._answered, handler), methods=[method])

    async def _answered(self, handler: Callable[[FhirRequest], Awaitable[Response]], request: Request) -> Response:
        try:
            return await handler(FhirRequest(request.scope, request.receive))
        except FhirProblem as problem:
            return problem.answer(self.kind)
        except Exception as error:  # noqa: BLE001 - a server answers whatever happens
            # The exception's text or a traceback may quote the resource: log the location only.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            log = logging.getLogger(f"sandbox.{self.name}")
            log.error("%s in %s:%s", type(error).__name__, Path(frame.filename).name, frame.lineno)  # noqa: TRY400
            defect = FhirProblem(500, "exception", "Internal error in the sandbox; its log gives the location.")
            return defect.answer(self.kind)

    async def not_found(self, _request: Request, _error: Exception) -> Response:
        """Answer a request for an unknown path."""
        return FhirProblem(404, "not-found", self.elsewhere).answer(self.kind)

    async def not_allowed(self, _request: Request, _error: Exception) -> Response:
        """Answer a request with an unsupported method."""
        return FhirProblem(405, "not-supported", "This method is not available here.").answer(self.kind)


class SandboxService(Starlette):
    """A service with credentials, faults and request log."""

    def __init__(self, inner: ServiceBackend, gate: RequiredCredentials | None = None) -> None:
        self.name = inner.name
        self._inner = inner
        self._gate = gate or RequiredCredentials()
        self.faults = FaultPlan()
        self.log = RequestLog()
        admin = [
            Route("/faults", self._answer_faults, methods=["GET", "PUT", "DELETE"]),
            Route("/requests", self._answer_requests, methods=["GET", "DELETE"]),
            *inner.admin_routes(),
        ]
        super().__init__(
            routes=[Mount("/_sandbox", _quiet(admin, _no_endpoint, _no_endpoint)), Mount("/", self._observed)],
            lifespan=self._lifespan,
        )
        self._routes = _quiet(
            [Route("/", self._about, methods=["GET"]), *inner.routes()], inner.not_found, inner.not_allowed
        )

    async def _observed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request: log it and apply a fault."""
        entry = self.log.begin(scope["method"], scope["path"])
        scope["state"]["log_entry"] = entry
        try:
            await self._serve(entry, scope, _counting(entry, receive), _noting(entry, send))
        finally:
            self.log.end(entry)

    async def _serve(self, entry: LogEntry, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        if self.faults.reads_body(entry.method, entry.path):
            whole = await read_body(receive)
            if whole is None:
                return
            body, receive = whole, replay(whole, receive)
        rule = self.faults.choose(entry.method, entry.path, body)
        exchange = HttpExchange(self._guarded, scope, receive, send)
        if rule is None:
            await exchange.run()
            return
        entry.fault = str(msgspec.to_builtins(rule)["action"])
        await rule.strike(exchange)
        entry.status = entry.status or exchange.wrote

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_about = scope["path"] == "/" and scope["method"] in ("GET", "HEAD")
        if not is_about and not self._gate.admits(dict(scope["headers"])):
            await read_body(receive)
            body = outcome("login", "This service requires credentials.")
            headers = {"www-authenticate": self._gate.challenge()}
            await answer(body, 401, headers, "application/fhir+json")(scope, receive, send)
            return
        # Clients send double slashes when a base URL ends in one.
        path = "/" + "/".join(part for part in scope["path"].split("/") if part)
        await self._routes({**scope, "path": path}, receive, send)

    async def _about(self, _request: Request) -> Response:
        about = {"service": self.name, "sandbox": True, "notice": DISCLAIMER}
        return answer(msgspec.json.encode(about), kind=JSON)

    async def _answer_faults(self, request: Request) -> Response:
        if request.method == "GET":
            return answer(msgspec.json.encode(self.faults.describe()), kind=JSON)
        try:
            self.faults.replace(await request.body() if request.method == "PUT" else b"[]")
        except FaultError as error:
            return answer(outcome("invalid", str(error)), 400, kind=JSON)
        return Response(status_code=204)

    async def _answer_requests(self, request: Request) -> Response:
        if request.method == "GET":
            return answer(msgspec.json.encode(self.log.describe()), kind=JSON)
        self.log.reset()
        return Response(status_code=204)

    def open(self) -> None:
        """Open the service's state, as the ASGI lifespan does."""
        self._inner.open()

    def close(self) -> None:
        """Close the service's state."""
        self._inner.close()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        try:
            self._inner.open()
        except Exception as error:  # whatever the error, the server must not start
            sys.stderr.write(f"{ERROR_PREFIX}{self.name} did not start: {error}\n")
            raise
        yield
        self._inner.close()


def _quiet(routes: Sequence[Route], not_found: Any, not_allowed: Any) -> Starlette:
    """Return an application without redirects that uses the service's own 404 and 405 answers."""
    app = Starlette(routes=routes, exception_handlers={404: not_found, 405: not_allowed})
    app.router.redirect_slashes = False
    return app


async def _no_endpoint(_request: Request, _error: Exception) -> Response:
    return answer(outcome("not-found", "The sandbox has no such endpoint."), 404, kind=JSON)


def _counting(entry: LogEntry, receive: Receive) -> Receive:
    async def counted() -> Message:
        message = await receive()
        entry.request_bytes += len(message.get("body", b""))
        return message

    return counted


def _noting(entry: LogEntry, send: Send) -> Send:
    async def noted(message: Message) -> None:
        if message["type"] == "http.response.start":
            entry.status = message["status"]
        else:
            entry.response_bytes += len(message.get("body", b""))
        await send(message)

    return noted
