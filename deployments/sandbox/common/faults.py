"""Faults on demand between a client and a service, over a real TCP connection (``4-product.md`` §8).

A rule selects requests (method, path, text in the body), skips the first ones (``skip``), applies to a number of them
(``times``; null = all) and does something (``action``, one class below for each). Rules are tried in order. The first
that applies acts, and a request gets at most one fault.
"""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from starlette.responses import HTMLResponse, Response
from starlette.types import Message

from deployments.sandbox.common.connection import HttpExchange
from deployments.sandbox.common.request import outcome

Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Moment = Literal["head", "body", "applied"]
"""Time of a fault: after the request's head, after its body was read, or after the service did its work."""

_LOGIN_PAGE = (
    b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body><form>Please sign in.</form></body></html>\n"
)


class FaultError(Exception):
    """A list of fault rules is invalid. The message states the reason."""


class FaultRule(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, tag_field="action"):
    """Selects the requests for a fault. ``path`` is a shell pattern (``*`` also matches ``/``)."""

    method: str = "*"
    path: str = "*"
    contains: str | None = None
    skip: Count = 0
    times: Count | None = 1

    def meets(self, method: str, path: str) -> bool:
        """Return True if method and path match the rule."""
        return self.method in ("*", method) and fnmatch.fnmatchcase(path, self.path)


async def _reach(exchange: HttpExchange, moment: Moment) -> None:
    if moment == "applied":
        await exchange.answer()
    elif moment == "body":
        await exchange.drain()


async def _hold(exchange: HttpExchange, seconds: float) -> None:
    """Keep the connection open and silent until the client disconnects or ``seconds`` have passed (0 = no limit)."""
    exchange.connection.held = True
    try:
        await asyncio.wait_for(exchange.wait_until_closed(), seconds or None)
    except TimeoutError:
        exchange.connection.close()
        await exchange.wait_until_closed()


class StatusFault(FaultRule, kw_only=True, frozen=True, tag="status"):
    """Answer with a status, headers and a body: text unchanged, other values as JSON, none = an OperationOutcome."""

    at: Moment = "body"
    status: Annotated[int, msgspec.Meta(ge=200, le=599)] = 503
    headers: dict[str, str] = {}
    body: Any = None

    async def strike(self, exchange: HttpExchange) -> None:
        """Answer instead of the service."""
        await _reach(exchange, self.at)
        if isinstance(self.body, str):
            content, kind = self.body.encode(), "text/plain; charset=utf-8"
        else:
            document = outcome("transient", "Sandbox fault.") if self.body is None else msgspec.json.encode(self.body)
            content, kind = document, "application/fhir+json"
        if self.status in (204, 304):
            content = b""
        named = {name.lower(): value for name, value in self.headers.items()}
        await exchange.respond(Response(content, self.status, {"content-type": kind} | named))


class Html200Fault(FaultRule, kw_only=True, frozen=True, tag="html-200"):
    """Answer 200 with a login page, as a proxy with an expired session does."""

    async def strike(self, exchange: HttpExchange) -> None:
        """Answer instead of the service."""
        await exchange.drain()
        await exchange.respond(HTMLResponse(_LOGIN_PAGE))


class DelayFault(FaultRule, kw_only=True, frozen=True, tag="delay"):
    """Delay the request before the service works (``head``, ``body``), or its response afterwards (``applied``)."""

    at: Moment = "head"
    seconds: Seconds = 1.0

    async def strike(self, exchange: HttpExchange) -> None:
        """Answer after the delay."""
        if self.at == "applied":
            start, body = await exchange.answer()
            await asyncio.sleep(self.seconds)
            await exchange.send(start)
            await exchange.send({"type": "http.response.body", "body": body, "more_body": False})
        else:
            await asyncio.sleep(self.seconds)
            await exchange.run()


class ResetFault(FaultRule, kw_only=True, frozen=True, tag="reset"):
    """Reset the connection (RST) without an answer."""

    at: Moment = "head"

    async def strike(self, exchange: HttpExchange) -> None:
        """Reset the connection."""
        await _reach(exchange, self.at)
        exchange.connection.reset()
        await exchange.wait_until_closed()


class CutFault(FaultRule, kw_only=True, frozen=True, tag="cut"):
    """Send ``bytes`` of the body (default: half), fewer than ``Content-Length``, then close the connection."""

    bytes: Count | None = None

    async def strike(self, exchange: HttpExchange) -> None:
        """Send a part of the answer."""
        await _begin(exchange, self.bytes)
        exchange.connection.close()
        await exchange.wait_until_closed()


class StallFault(FaultRule, kw_only=True, frozen=True, tag="stall"):
    """Send the head and ``bytes`` of the body (default: half), then nothing for ``seconds`` (0 = until the client
    disconnects)."""

    bytes: Count | None = None
    seconds: Seconds = 0

    async def strike(self, exchange: HttpExchange) -> None:
        """Send a part of the answer and keep the connection open."""
        await _begin(exchange, self.bytes)
        await _hold(exchange, self.seconds)


class WrongLengthFault(FaultRule, kw_only=True, frozen=True, tag="wrong-length"):
    """Send the whole body with a ``Content-Length`` that is wrong by ``delta``, then close the connection."""

    delta: int = 10

    async def strike(self, exchange: HttpExchange) -> None:
        """Answer with a wrong length."""
        start, body = await exchange.answer()
        _write_head(exchange, start, max(0, len(body) + self.delta))
        exchange.connection.write(body)
        exchange.connection.close()
        await exchange.wait_until_closed()


class SlowFault(FaultRule, kw_only=True, frozen=True, tag="slow"):
    """Send the answer ``bytes`` at a time, with ``seconds`` between them."""

    bytes: Annotated[int, msgspec.Meta(ge=1)] = 1
    seconds: Seconds = 0.02

    async def strike(self, exchange: HttpExchange) -> None:
        """Send the answer in small parts."""

        async def trickle(message: Message) -> None:
            if message["type"] != "http.response.body":
                await exchange.send(message)
                return
            body: bytes = message.get("body", b"")
            for at in range(0, len(body), self.bytes):
                if exchange.connection.closing:
                    return
                await exchange.send({**message, "body": body[at : at + self.bytes], "more_body": True})
                await asyncio.sleep(self.seconds)
            if not message.get("more_body", False):
                await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})

        await exchange.run(trickle)


AnyRule = StatusFault | Html200Fault | DelayFault | ResetFault | CutFault | StallFault | WrongLengthFault | SlowFault


def _write_head(exchange: HttpExchange, start: Message, length: int) -> None:
    """Write a response head directly to the connection, because ASGI refuses a wrong length."""
    exchange.wrote = start["status"]
    lines = [b"HTTP/1.1 %d Fault" % start["status"]]
    lines += [name + b": " + value for name, value in start["headers"] if name.lower() != b"content-length"]
    lines.append(b"content-length: %d" % length)
    exchange.connection.write(b"\r\n".join(lines) + b"\r\n\r\n")


async def _begin(exchange: HttpExchange, wanted: int | None) -> None:
    """Send the head with a ``Content-Length`` above the actual length, and the first bytes of the body."""
    start, body = await exchange.answer()
    part = body[: len(body) // 2 if wanted is None else wanted]
    _write_head(exchange, start, max(len(body), len(part) + 1))
    exchange.connection.write(part)


class FaultPlan:
    """Fault rules of one service, with counters of matching and affected requests."""

    def __init__(self) -> None:
        self._rules: list[AnyRule] = []
        self._met: list[int] = []
        self._struck: list[int] = []

    def replace(self, document: bytes) -> None:
        """Replace the rules by a JSON list. Raises ``FaultError`` and keeps the old rules if it is invalid."""
        try:
            rules = msgspec.json.decode(document, type=list[AnyRule])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FaultError(str(error)) from None
        self._rules = rules
        self._met = [0] * len(rules)
        self._struck = [0] * len(rules)

    def reads_body(self, method: str, path: str) -> bool:
        """Return True if the choice of a rule depends on the request body."""
        return any(rule.contains is not None and rule.meets(method, path) for rule in self._rules)

    def choose(self, method: str, path: str, body: bytes) -> AnyRule | None:
        """Count and return the rule that applies to this request, or None."""
        for number, rule in enumerate(self._rules):
            if not rule.meets(method, path):
                continue
            if rule.contains is not None and rule.contains.encode() not in body:
                continue
            self._met[number] += 1
            if self._met[number] <= rule.skip:
                continue
            if rule.times is not None and self._struck[number] >= rule.times:
                continue
            self._struck[number] += 1
            return rule
        return None

    def describe(self) -> Sequence[dict[str, Any]]:
        """Return the rules as a JSON document, each with the counters ``met`` and ``struck``."""
        return [
            msgspec.to_builtins(rule) | {"met": met, "struck": struck}
            for rule, met, struck in zip(self._rules, self._met, self._struck, strict=True)
        ]
