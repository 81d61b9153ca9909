"""Credentials of a service: Basic, OAuth 2.0 client credentials, API key (document 1, "Authentication").

Where they may go is for the client to decide; what they are, and that none of them shows, is decided here.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable

from config import AuthConfig
from tasks.shared.blanked import SECRETS
from tasks.shared.errors import InputError
from tasks.shared.http.oauth import TOKENS, ClientCredentials, Fetch, TokenCache


class Credentials:
    """The headers that authenticate one service's requests.

    ``service`` is the key under ``services``; errors name the block by it. ``fetch`` and ``warn`` are
    used for OAuth 2.0 only. Raises ``InputError`` (``auth-value``) for a value that cannot stand in a header.
    """

    def __init__(
        self,
        auth: AuthConfig | None,
        *,
        service: str,
        fetch: Fetch,
        warn: Callable[[str], None] = lambda _: None,
        tokens: TokenCache = TOKENS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fixed: list[tuple[bytes, bytes]] = []
        self._oauth: ClientCredentials | None = None
        if auth is None:
            return
        SECRETS.auth(auth)
        block = f"services.{service}.auth"
        if auth.oauth_issuer_uri:
            secret = auth.oauth_client_secret.get_secret_value() if auth.oauth_client_secret else ""
            self._oauth = ClientCredentials(
                block,
                auth.oauth_issuer_uri.rstrip("/"),
                auth.oauth_client_id or "",
                secret,
                fetch,
                warn,
                tokens,
                clock,
            )
        elif auth.username is not None:
            password = auth.password.get_secret_value() if auth.password else ""
            pair = base64.b64encode(f"{auth.username}:{password}".encode())
            self._fixed.append((b"Authorization", b"Basic " + pair))
        if auth.api_key:
            self._fixed.append(
                (
                    _header_value(auth.api_key_header, f"{block}.api_key_header"),
                    _header_value(auth.api_key.get_secret_value(), f"{block}.api_key"),
                )
            )

    @property
    def renewable(self) -> bool:
        """Whether a 401 is answered by a fresh token."""
        return self._oauth is not None

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers for one request; a token is obtained when there is no good one.

        Raises ``ServiceError`` when the issuer refuses, ``NetworkError`` or ``ServiceBusyError`` when it
        cannot answer now.
        """
        if self._oauth is None:
            return self._fixed
        return [(b"Authorization", b"Bearer " + self._oauth.token().encode("ascii")), *self._fixed]

    def drop(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Forget the token in ``headers``, which a service has refused, unless it is replaced already."""
        if self._oauth is not None and headers:
            self._oauth.drop(headers[0][1].removeprefix(b"Bearer ").decode("ascii"))


def _header_value(value: str, key: str) -> bytes:
    if not value.isascii() or not value.isprintable() or value != value.strip():
        raise InputError(
            "auth-value",
            f"the value of {key} cannot be sent in an HTTP header",
            context=key,
            hint="it must be ASCII, without line breaks and without blanks at its ends",
        )
    return value.encode("ascii")
