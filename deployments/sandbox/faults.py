"""Faults on demand: a status, a delay or a cut answer instead of the service's own.

A rule selects requests (method, path, text in the body), skips the first ones (``skip``) and applies to a number of
them (``times``; null = all). Rules are tried in order. The first that applies acts, once for a request.
"""

from __future__ import annotations

import asyncio
import fnmatch
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Count = Annotated[int, msgspec.Meta(ge=0)]


class FaultError(Exception):
    """A list of fault rules is invalid. The message states the reason."""


class FaultRule(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A rule. ``path`` is a shell pattern (``*`` also matches ``/``)."""

    action: Literal["status", "delay", "cut"]
    method: str = "*"
    path: str = "*"
    contains: str | None = None
    skip: Count = 0
    times: Count | None = 1
    at: Literal["body", "applied"] = "body"
    """Before the service works, or after it did its work, which the client does not learn."""
    status: Annotated[int, msgspec.Meta(ge=200, le=599)] = 503
    headers: dict[str, str] = {}
    body: Any = None
    """Text as it is, another value as JSON; without one, an OperationOutcome."""
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    bytes: Count | None = None
    """Bytes of the body before the cut; half of it by default."""


@dataclass
class _Counted:
    rule: FaultRule
    met: int = 0
    struck: int = 0


class FaultPlan:
    """Fault rules of one service, with counters of matching and affected requests."""

    def __init__(self) -> None:
        self._rules: list[_Counted] = []

    def replace(self, document: bytes) -> None:
        """Replace the rules by a JSON list. Raises ``FaultError`` and keeps the old rules if it is invalid."""
        try:
            self._rules = [_Counted(rule) for rule in msgspec.json.decode(document, type=list[FaultRule])]
        except ValueError as error:
            raise FaultError(str(error)) from None

    def choose(self, method: str, path: str, body: bytes) -> FaultRule | None:
        """Count and return the rule that applies to this request, or None."""
        for each in self._rules:
            rule = each.rule
            if rule.method not in ("*", method) or not fnmatch.fnmatchcase(path, rule.path):
                continue
            if rule.contains is not None and rule.contains.encode() not in body:
                continue
            each.met += 1
            if each.met > rule.skip and (rule.times is None or each.struck < rule.times):
                each.struck += 1
                return rule
        return None

    def describe(self) -> list[dict[str, Any]]:
        """Return the rules, each with the counters ``met`` and ``struck``."""
        return [msgspec.to_builtins(each.rule) | {"met": each.met, "struck": each.struck} for each in self._rules]


async def strike(rule: FaultRule, service: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request as the rule says."""
    done = _Collected()
    if rule.at == "applied" or rule.action == "cut":
        await service(scope, receive, done)
    match rule.action:
        case "status":
            await _status(rule)(scope, receive, send)
        case "cut":
            await _cut(rule, done, send)
        case "delay":
            await asyncio.sleep(rule.seconds)
            if rule.at == "applied":
                await done.replay(send)
            else:
                await service(scope, receive, send)


class _Collected:
    """An answer that is held back."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def __call__(self, message: Message) -> None:
        self.messages.append(message)

    async def replay(self, send: Send) -> None:
        for message in self.messages:
            await send(message)


def _status(rule: FaultRule) -> Response:
    if isinstance(rule.body, str):
        content, kind = rule.body.encode(), "text/plain; charset=utf-8"
    else:
        issue = {"severity": "error", "code": "transient", "diagnostics": "Sandbox fault."}
        document = {"resourceType": "OperationOutcome", "issue": [issue]} if rule.body is None else rule.body
        content, kind = msgspec.json.encode(document), "application/fhir+json"
    named = {name.lower(): value for name, value in rule.headers.items()}
    return Response(b"" if rule.status in (204, 304) else content, rule.status, {"content-type": kind} | named)


async def _cut(rule: FaultRule, done: _Collected, send: Send) -> None:
    """Send a part of the body; the server then closes the connection, because the application failed."""
    start, *rest = done.messages
    body = b"".join(message.get("body", b"") for message in rest)
    part = body[: len(body) // 2 if rule.bytes is None else rule.bytes]
    kept = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
    length = str(max(len(body), len(part) + 1)).encode()
    await send({**start, "headers": [*kept, (b"content-length", length)]})
    await send({"type": "http.response.body", "body": part, "more_body": True})
    raise ConnectionAbortedError
