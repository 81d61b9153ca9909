"""An OAuth 2.0 issuer for tests: discovery and client credentials (document 3 §1, OAuth 2.0).

======================================  ==============================================================
``/.well-known/openid-configuration``   metadata, or 404 if ``discovery`` is off (Keycloak's path remains)
``/token``                              the token endpoint in the metadata
``/protocol/openid-connect/token``      the same at Keycloak's path
======================================  ==============================================================

Tokens are random text. A service checks them with ``accepts(token)``.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote_plus

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

METHODS = ("client_secret_post", "client_secret_basic")


@dataclass(frozen=True)
class IssuerFault:
    """A response that the issuer sends instead of its own."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class IssuerSettings:
    """Behaviour of the issuer.

    ``expires_in`` is in seconds; ``None`` omits it from the answer. ``token_endpoint`` replaces the metadata's URL.
    ``methods`` are the allowed methods of client authentication; ``advertise_methods=False`` omits them from the
    metadata. ``extra`` is merged into every token answer.
    """

    client_id: str = "sluice"
    client_secret: str = field(default="sandbox-secret", repr=False)
    expires_in: float | None = 300
    discovery: bool = True
    methods: tuple[str, ...] = METHODS
    advertise_methods: bool = True
    token_endpoint: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class OAuthIssuer:
    """The issuer: ``app`` is its ASGI application, the counters count its requests.

    ``settings`` can be replaced while it runs. The token endpoint sends the ``faults``, the discovery document the
    ``discovery_faults``, in order, each once. ``clock`` returns seconds, for the expiry of tokens.
    """

    def __init__(self, settings: IssuerSettings | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings or IssuerSettings()
        self.faults: list[IssuerFault] = []
        self.discovery_faults: list[IssuerFault] = []
        self.issued = 0
        self.token_requests = 0
        self.discovery_requests = 0
        self.methods_used: list[str] = []
        self._clock = clock
        self._lock = threading.Lock()
        self._good_until: dict[str, float] = {}
        self.app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._discovery, methods=["GET"]),
                Route("/token", self._token, methods=["POST"]),
                Route("/protocol/openid-connect/token", self._token, methods=["POST"]),
            ]
        )

    def accepts(self, token: str) -> bool:
        """Return True if ``token`` was issued here and has neither expired nor been revoked."""
        with self._lock:
            good_until = self._good_until.get(token)
        return good_until is not None and self._clock() < good_until

    def revoke_all(self) -> None:
        """Revoke all tokens, as a restart of an issuer does."""
        with self._lock:
            self._good_until.clear()

    async def _discovery(self, request: Request) -> Response:
        self.discovery_requests += 1
        if self.discovery_faults:
            return _faulty(self.discovery_faults.pop(0))
        if not self.settings.discovery:
            return JSONResponse({"error": "not found"}, 404)
        root = str(request.base_url).rstrip("/")
        document: dict[str, Any] = {
            "issuer": root,
            "token_endpoint": self.settings.token_endpoint or f"{root}/token",
            "grant_types_supported": ["client_credentials"],
        }
        if self.settings.advertise_methods:
            document["token_endpoint_auth_methods_supported"] = list(self.settings.methods)
        return JSONResponse(document)

    async def _token(self, request: Request) -> Response:
        self.token_requests += 1
        form = parse_qs((await request.body()).decode("utf-8", "replace"))
        if self.faults:
            return _faulty(self.faults.pop(0))
        if form.get("grant_type") != ["client_credentials"]:
            return _error(400, "unsupported_grant_type")
        method, client_id, secret = _client(request.headers.get("authorization"), form)
        settings = self.settings
        known = hmac.compare_digest(client_id.encode(), settings.client_id.encode()) and hmac.compare_digest(
            secret.encode(), settings.client_secret.encode()
        )
        if method not in settings.methods or not known:
            return _error(401, "invalid_client")
        token = secrets.token_urlsafe(32)
        lifetime = settings.expires_in
        with self._lock:
            self.issued += 1
            self.methods_used.append(method)
            self._good_until[token] = self._clock() + lifetime if lifetime is not None else float("inf")
        answer: dict[str, Any] = {"access_token": token, "token_type": "Bearer"}
        if lifetime is not None:
            answer["expires_in"] = lifetime
        return JSONResponse(answer | settings.extra, headers={"Cache-Control": "no-store"})


def _client(authorization: str | None, form: dict[str, list[str]]) -> tuple[str, str, str]:
    """Return the method of client authentication, the client id and the secret (RFC 6749 §2.3.1)."""
    scheme, _, value = (authorization or "").partition(" ")
    if scheme.lower() == "basic":
        try:
            name, _, secret = base64.b64decode(value, validate=True).decode("ascii").partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return "client_secret_basic", "", ""
        return "client_secret_basic", unquote_plus(name), unquote_plus(secret)
    return "client_secret_post", form.get("client_id", [""])[0], form.get("client_secret", [""])[0]


def _error(status: int, code: str) -> Response:
    # Real issuers describe the client in this text, so a client must not show it.
    body = {"error": code, "error_description": "Invalid client or Invalid client credentials"}
    headers = {"WWW-Authenticate": 'Basic realm="issuer"'} if status == 401 else None
    return Response(json.dumps(body), status, headers, "application/json")


def _faulty(fault: IssuerFault) -> Response:
    return Response(fault.body, fault.status, fault.headers, "application/json")
