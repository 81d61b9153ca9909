"""The frame around every sandbox service: credentials, faults, the request log, and the ``/_sandbox``
endpoints.

==========================  ===============================================================
``GET /``                   what this is, and that it is not for production
``/_sandbox/faults``        ``PUT`` a JSON list of rules, ``GET`` them with counters, ``DELETE`` them
``/_sandbox/requests``      ``GET`` what was asked so far, ``DELETE`` to start counting afresh
``/_sandbox/…``             further resources of a service, see its ``admin`` method
==========================  ===============================================================

The ``/_sandbox`` endpoints ask for no credentials, meet no fault and are not counted.
"""

from __future__ import annotations

import sys
from typing import Protocol

import msgspec

from deployments.sandbox.common.exchange import Exchange, Message, Receive, Scope, Send, read_body, replay
from deployments.sandbox.common.faults import FaultError, FaultPlan
from deployments.sandbox.common.gate import Gate
from deployments.sandbox.common.requestlog import Request, RequestLog
from deployments.sandbox.common.serve import COMPLAINT

NOTE_KEY = "sandbox.request"
"""Where in ``scope["state"]`` a service finds its entry of the request log, to note entries and types."""

DISCLAIMER = "Sandbox service for trials and tests, not for production: no real patient data belongs here."


class Inner(Protocol):
    """What a service brings: an ASGI application with a beginning and an end."""

    name: str
    """Short name, as in the host's list and in ``urls``."""

    def open(self) -> None:
        """Take hold of state and threads; called once before the first request."""

    def close(self) -> None:
        """Let go of them."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one HTTP request."""

    async def admin(self, method: str, path: str, send: Send) -> bool:
        """Answer a request below ``/_sandbox/`` (``path`` is what follows), or return False."""


async def respond(
    send: Send,
    status: int,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    kind: str = "application/json",
) -> None:
    """Send one complete answer."""
    fields = {"content-length": str(len(body))} | ({"content-type": kind} if body else {}) | (headers or {})
    if status in (204, 304):
        del fields["content-length"]
    pairs = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def outcome(code: str, diagnostics: str, severity: str = "error") -> bytes:
    """An OperationOutcome with one issue."""
    issue = {"severity": severity, "code": code, "diagnostics": diagnostics}
    return msgspec.json.encode({"resourceType": "OperationOutcome", "issue": [issue]})


class SandboxService:
    """An ASGI application: a service inside the frame."""

    def __init__(self, inner: Inner, gate: Gate | None = None) -> None:
        self.name = inner.name
        self._inner = inner
        self._gate = gate or Gate()
        self.faults = FaultPlan()
        self.log = RequestLog()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the lifespan or one request."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        path: str = scope["path"]
        if path.startswith("/_sandbox/"):
            await self._admin(scope["method"], path.removeprefix("/_sandbox/"), receive, send)
            return
        request = self.log.begin(scope["method"], path)
        scope["state"][NOTE_KEY] = request
        try:
            await self._serve(request, scope, _counting(request, receive), _noting(request, send))
        finally:
            self.log.end(request)

    async def _serve(self, request: Request, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        if self.faults.reads_body(request.method, request.path):
            whole = await read_body(receive)
            if whole is None:
                return
            body, receive = whole, replay(whole, receive)
        rule = self.faults.choose(request.method, request.path, body)
        exchange = Exchange(self._guarded, scope, receive, send)
        if rule is None:
            await exchange.run()
            return
        request.fault = str(msgspec.to_builtins(rule)["action"])
        await rule.strike(exchange)
        request.status = request.status or exchange.wrote

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/" and scope["method"] in ("GET", "HEAD"):
            about = {"service": self.name, "sandbox": True, "notice": DISCLAIMER}
            await respond(send, 200, msgspec.json.encode(about))
            return
        if not self._gate.admits(dict(scope["headers"])):
            await read_body(receive)
            body = outcome("login", "This service asks for credentials.")
            await respond(send, 401, body, {"www-authenticate": self._gate.challenge()}, "application/fhir+json")
            return
        await self._inner(scope, receive, send)

    async def _admin(self, method: str, path: str, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        if body is None:
            return
        match path, method:
            case "faults", "GET":
                await respond(send, 200, msgspec.json.encode(self.faults.describe()))
            case "faults", "PUT":
                try:
                    self.faults.replace(body)
                except FaultError as error:
                    await respond(send, 400, outcome("invalid", str(error)))
                    return
                await respond(send, 204)
            case "faults", "DELETE":
                self.faults.clear()
                await respond(send, 204)
            case "requests", "GET":
                await respond(send, 200, msgspec.json.encode(self.log.describe()))
            case "requests", "DELETE":
                self.log.reset()
                await respond(send, 204)
            case _:
                if not await self._inner.admin(method, path, send):
                    await respond(send, 404, outcome("not-found", "The sandbox has no such endpoint."))

    def open(self) -> None:
        """Take hold of the service's state; the ASGI lifespan does the same."""
        self._inner.open()

    def close(self) -> None:
        """Let go of it."""
        self._inner.close()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            self._inner.open()
        except Exception as error:  # noqa: BLE001 - whatever it is, the server must not start
            sys.stderr.write(f"{COMPLAINT}{self.name} did not start: {error}\n")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._inner.close()
        await send({"type": "lifespan.shutdown.complete"})


def _counting(request: Request, receive: Receive) -> Receive:
    async def counted() -> Message:
        message = await receive()
        request.request_bytes += len(message.get("body", b""))
        return message

    return counted


def _noting(request: Request, send: Send) -> Send:
    async def noted(message: Message) -> None:
        if message["type"] == "http.response.start":
            request.status = message["status"]
        else:
            request.response_bytes += len(message.get("body", b""))
        await send(message)

    return noted
