"""How the extraction server reads requests and answers them."""

from __future__ import annotations

from typing import Any

from deployments.sandbox.common.answering import Answer, Call, headers_of
from deployments.sandbox.common.exchange import Scope
from deployments.sandbox.common.json_text import encode

FHIR_JSON = "application/fhir+json"
JSON = "application/json"


def said(document: object, status: int = 200, headers: dict[str, str] | None = None, kind: str = FHIR_JSON) -> Answer:
    """A JSON document as an answer."""
    return Answer(status, encode(document), headers or {}, kind)


def issue(severity: str, code: str, diagnostics: str) -> dict[str, Any]:
    """One issue of an OperationOutcome."""
    return {"severity": severity, "code": code, "diagnostics": diagnostics}


def outcome(issues: Any) -> dict[str, Any]:
    """An OperationOutcome."""
    return {"resourceType": "OperationOutcome", "issue": list(issues)}


def read_call(scope: Scope, public_url: str | None = None) -> Call:
    """Take a request apart. ``public_url``: the root URL, whatever the client says."""
    headers = headers_of(scope)
    return Call(
        method=scope["method"],
        # Double slashes are what clients make of a base URL that ends in one.
        segments=[part for part in scope["path"].split("/") if part],
        query=scope["query_string"].decode("latin-1"),
        headers=headers,
        base=public_url or _root(scope, headers),
    )


def _root(scope: Scope, headers: dict[str, str]) -> str:
    """The URL that the client used; a proxy in between, as in front of real servers, tells it in ``X-Forwarded-…``."""

    def forwarded(what: str) -> str:
        return headers.get(f"x-forwarded-{what}", "").partition(",")[0].strip()

    server = scope["server"]
    host = forwarded("host") or headers.get("host") or f"{server[0]}:{server[1]}"
    prefix = "".join(f"/{part}" for part in forwarded("prefix").split("/") if part)
    return f"{forwarded('proto') or scope['scheme']}://{host}{prefix}"
