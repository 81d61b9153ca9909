"""Faults on demand: a status, a delay or a cut answer instead of the service's own.

A rule selects requests (method, path, text in the body), skips the first ones (``skip``) and applies to a number of
them (``times``; null = all). Rules are tried in order. The first that applies acts, once for a request.
"""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Count = Annotated[int, msgspec.Meta(ge=0)]


class FaultRule(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A rule. ``path`` is a shell pattern (``*`` also matches ``/``)."""

    action: Literal["status", "delay", "cut"]
    method: str = "*"
    path: str = "*"
    contains: str | None = None
    skip: Count = 0
    times: Count | None = 1
    status: Annotated[int, msgspec.Meta(ge=200, le=599)] = 503
    headers: dict[str, str] = {}
    body: Any = None
    """Body of the answer: a text is sent unchanged, another value as JSON. Default: an OperationOutcome."""
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    met: int = 0
    """Number of requests that the rule has selected so far."""


def choose(rules: Sequence[FaultRule], method: str, path: str, body: bytes) -> FaultRule | None:
    """Return the first rule that applies to this request, or None. Rules that select it count it until then."""
    for rule in rules:
        if rule.method not in ("*", method) or not fnmatch.fnmatchcase(path, rule.path):
            continue
        if rule.contains is not None and rule.contains.encode() not in body:
            continue
        rule.met += 1
        if rule.met > rule.skip and (rule.times is None or rule.met <= rule.skip + rule.times):
            return rule
    return None


async def strike(rule: FaultRule, service: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request as the rule says."""
    match rule.action:
        case "status":
            await _status(rule)(scope, receive, send)
        case "cut":
            held: list[Message] = []

            async def hold(message: Message) -> None:
                held.append(message)

            await service(scope, receive, hold)
            await _cut(held, send)
        case "delay":
            await asyncio.sleep(rule.seconds)
            await service(scope, receive, send)


def _status(rule: FaultRule) -> Response:
    if isinstance(rule.body, str):
        content, kind = rule.body.encode(), "text/plain; charset=utf-8"
    else:
        issue = {"severity": "error", "code": "transient", "diagnostics": "Sandbox fault."}
        document = {"resourceType": "OperationOutcome", "issue": [issue]} if rule.body is None else rule.body
        content, kind = msgspec.json.encode(document), "application/fhir+json"
    return Response(content, rule.status, {"content-type": kind} | rule.headers)


async def _cut(held: Sequence[Message], send: Send) -> None:
    """Send half of the body; the server then closes the connection, because the application failed."""
    start, *rest = held
    body = b"".join(message.get("body", b"") for message in rest)
    await send(start)
    await send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
    raise ConnectionAbortedError
