"""How the extraction server reads requests and answers them, and how it says no: an OperationOutcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deployments.sandbox.common.exchange import Receive, Scope
from deployments.sandbox.common.json_text import encode

FHIR_JSON = "application/fhir+json"
JSON = "application/json"


@dataclass(frozen=True)
class Answer:
    """A complete answer; ``body`` is a JSON document, or bytes."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    kind: str = FHIR_JSON

    @property
    def content(self) -> bytes:
        """The body as bytes."""
        if self.body is None:
            return b""
        return self.body if isinstance(self.body, bytes) else encode(self.body)


class Refusal(Exception):  # noqa: N818 - what the client did, not what failed here
    """A request that is refused: HTTP status, issue code, and what was wrong with it."""

    def __init__(self, status: int, code: str, *diagnostics: str, severity: str = "error") -> None:
        super().__init__(f"{status} {code}")
        self.status = status
        self.code = code
        self.diagnostics = diagnostics
        self.severity = severity

    def answer(self) -> Answer:
        """The refusal as an answer."""
        return Answer(self.status, outcome(issue(self.severity, self.code, text) for text in self.diagnostics))


def issue(severity: str, code: str, diagnostics: str) -> dict[str, Any]:
    """One issue of an OperationOutcome."""
    return {"severity": severity, "code": code, "diagnostics": diagnostics}


def outcome(issues: Any) -> dict[str, Any]:
    """An OperationOutcome."""
    return {"resourceType": "OperationOutcome", "issue": list(issues)}


@dataclass(frozen=True)
class Call:
    """A request, taken apart."""

    method: str
    segments: Sequence[str]
    """Path segments."""
    query: str
    headers: dict[str, str]
    root: str
    """Root URL as this client sees it, without a trailing slash."""
    body: bytes = b""

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return self.method in ("GET", "HEAD")

    @property
    def is_strict(self) -> bool:
        """Whether the client wants to hear about every problem (``Prefer: handling=strict``)."""
        return "handling=strict" in self.headers.get("prefer", "").lower().replace(" ", "")


def read_call(scope: Scope, public_url: str | None = None) -> Call:
    """Take a request apart. ``public_url``: the root URL, whatever the client says."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    return Call(
        method=scope["method"],
        # Double slashes are what clients make of a base URL that ends in one.
        segments=[part for part in scope["path"].split("/") if part],
        query=scope["query_string"].decode("latin-1"),
        headers=headers,
        root=public_url or _root(scope, headers),
    )


def _root(scope: Scope, headers: dict[str, str]) -> str:
    """The URL that the client used; a proxy in between, as in front of real servers, tells it in ``X-Forwarded-…``."""

    def forwarded(what: str) -> str:
        return headers.get(f"x-forwarded-{what}", "").partition(",")[0].strip()

    server = scope["server"]
    host = forwarded("host") or headers.get("host") or f"{server[0]}:{server[1]}"
    prefix = "".join(f"/{part}" for part in forwarded("prefix").split("/") if part)
    return f"{forwarded('proto') or scope['scheme']}://{host}{prefix}"


async def read_limited(receive: Receive, limit: int) -> bytes:
    """The body of a request. Raises ``Refusal`` 413 when it has more than ``limit`` bytes."""
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(400, "incomplete", "The body ended early.")
        part = message.get("body", b"")
        size += len(part)
        # A body that is too large is read to its end, so that the client gets to the answer, but not kept.
        parts.append(part)
        if size > limit:
            parts.clear()
        more = message.get("more_body", False)
    if size > limit:
        raise Refusal(413, "too-long", f"A body has at most {limit} bytes.")
    return b"".join(parts)
