"""An OAuth 2.0 issuer: discovery, also at Keycloak's path, and client credentials (document 3 §1, OAuth 2.0)."""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote_plus

from tests.peers.server import Reply, ScriptedServer, SeenRequest
from tests.peers.services import as_json


@dataclass(frozen=True)
class IssuerSettings:
    """``expires_in`` is in seconds; ``None`` omits it from the answer. Without ``discovery`` its document is a 404.

    ``token_endpoint`` replaces the metadata's URL, ``methods`` are the allowed methods of client authentication, and
    ``extra`` is merged into every token answer.
    """

    client_id: str = "sluice"
    client_secret: str = field(default="secret", repr=False)
    expires_in: float | None = 300
    discovery: bool = True
    methods: tuple[str, ...] = ("client_secret_post", "client_secret_basic")
    advertise_methods: bool = True
    token_endpoint: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class OAuthIssuer(ScriptedServer):
    """Gives tokens of random text, which a service checks with ``accepts``.

    The token endpoint sends the ``faults``, the discovery document the ``discovery_faults``, in order, each once.
    """

    def __init__(self, settings: IssuerSettings | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings or IssuerSettings()
        self.faults: list[Reply] = []
        self.discovery_faults: list[Reply] = []
        self.issued = self.token_requests = self.discovery_requests = 0
        self.methods_used: list[str] = []
        self._clock = clock
        self._good_until: dict[str, float] = {}
        super().__init__(lambda seen: self._discovery() if seen.method == "GET" else self._token(seen))

    def accepts(self, token: str) -> bool:
        """Return whether ``token`` was issued here and has neither expired nor been revoked."""
        return self._clock() < self._good_until.get(token, 0)

    def revoke_all(self) -> None:
        """Revoke all tokens, as a restart of an issuer does."""
        self._good_until.clear()

    def _discovery(self) -> Reply:
        self.discovery_requests += 1
        if self.discovery_faults:
            return self.discovery_faults.pop(0)
        if not self.settings.discovery:
            return as_json({"error": "not found"}, 404)
        document: dict[str, Any] = {
            "issuer": self.url,
            "token_endpoint": self.settings.token_endpoint or f"{self.url}/token",
            "grant_types_supported": ["client_credentials"],
        }
        if self.settings.advertise_methods:
            document["token_endpoint_auth_methods_supported"] = list(self.settings.methods)
        return as_json(document)

    def _token(self, seen: SeenRequest) -> Reply:
        self.token_requests += 1
        if self.faults:
            return self.faults.pop(0)
        settings, form = self.settings, parse_qs(seen.body.decode())
        if form.get("grant_type") != ["client_credentials"]:
            return as_json({"error": "unsupported_grant_type"}, 400)
        scheme, _, value = (seen.authorization or "").partition(" ")
        if scheme == "Basic":
            method = "client_secret_basic"
            client, _, secret = base64.b64decode(value).decode().partition(":")
            client, secret = unquote_plus(client), unquote_plus(secret)
        else:
            method, client, secret = (
                "client_secret_post",
                form.get("client_id", [""])[0],
                form.get("client_secret", [""])[0],
            )
        if method not in settings.methods or (client, secret) != (settings.client_id, settings.client_secret):
            # Real issuers describe the client in this text, so a client must not show it.
            return as_json({"error": "invalid_client", "error_description": "Invalid client credentials"}, 401)
        token = secrets.token_urlsafe(32)
        with self.lock:
            self.issued += 1
            self.methods_used.append(method)
            self._good_until[token] = self._clock() + (1e9 if settings.expires_in is None else settings.expires_in)
        lifetime = {} if settings.expires_in is None else {"expires_in": settings.expires_in}
        return as_json({"access_token": token, "token_type": "Bearer"} | lifetime | settings.extra)
