"""Credentials of a service: Basic, OAuth 2.0 client credentials, API key (docs/configuration.md).

The process keeps one token per issuer and client, which all clients of a run share. Tokens are refreshed 30 seconds
before they expire. authlib writes the client's credentials into the token request.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote_plus, urlsplit

import httpx

from config import AuthConfig
from tasks.shared.blanked import remember
from tasks.shared.errors import TOKEN_OPERATION, InputError, ServiceBusyError, ServiceError, SluiceError
from tasks.shared.fhir.resource import list_of, object_of, parse_json
from tasks.shared.http.answer import Answer, place

_REFRESH_BEFORE_EXPIRY: Final = 30.0
_KEYCLOAK_PATH: Final = "/protocol/openid-connect/token"
_FORM: Final = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded;charset=UTF-8"}
_CODE: Final = re.compile(r"[a-z_]{1,40}")
"""An error code of RFC 6749; anything else is text of the issuer."""

Fetch = Callable[[str, str, Mapping[str, str], bytes | None], Answer]
"""Sends a request (method, URL, headers, body) without credentials, with retries. Returns an answer with 2xx or 4xx;
raises an error for 407, 408, 429 and everything else."""

Origin = tuple[str, str, int]


def origin_of(url: httpx.URL) -> Origin:
    """Return scheme, host and port of a URL."""
    return url.scheme, url.host.lower(), url.port or (443 if url.scheme == "https" else 80)


class OriginAuth(httpx.Auth):
    """Adds the credentials to requests to these origins, and to no others. After a 401 it drops a bearer token, and
    repeats the request once with a new one."""

    def __init__(self, credentials: Credentials, origins: frozenset[Origin]) -> None:
        self._credentials = credentials
        self._origins = origins

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Yield the request as it is to be sent."""
        if origin_of(request.url) not in self._origins:
            yield request
            return
        sent = self._credentials.headers()
        request.headers.update(sent)
        response = yield request
        if response.status_code == 401 and self._credentials.drop(sent):
            request.headers.update(self._credentials.headers())
            yield request


@dataclass
class _Token:
    """The token of one client, ``None`` before the first. A thread that needs it waits for a fetch under way."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    value: str | None = field(default=None, repr=False)
    good_until: float = 0.0
    endpoint: tuple[str, str] | None = None


_tokens: dict[tuple[str, str, bytes], _Token] = {}
_tokens_lock = threading.Lock()


class Credentials:
    """The headers that authenticate one service's requests. ``service`` is the key under ``services``.

    Raises ``InputError`` (``auth-value``) for a value that a header cannot contain.
    """

    def __init__(self, auth: AuthConfig | None, *, service: str, fetch: Fetch) -> None:
        self._fixed: dict[str, str] = {}
        self._grant: _ClientCredentials | None = None
        if auth is None:
            return
        remember(auth)
        block = f"services.{service}.auth"
        if auth.oauth_issuer_uri:
            self._grant = _ClientCredentials(auth, block, fetch)
        elif auth.username is not None:
            password = auth.password.get_secret_value() if auth.password else ""
            pair = base64.b64encode(f"{auth.username}:{password}".encode()).decode("ascii")
            self._fixed["Authorization"] = f"Basic {pair}"
        if auth.api_key:
            name = _header_value(auth.api_key_header, f"{block}.api_key_header")
            self._fixed[name] = _header_value(auth.api_key.get_secret_value(), f"{block}.api_key")

    def headers(self) -> dict[str, str]:
        """Return the headers of one request; a token is obtained if none is valid.

        Raises ``ServiceError`` when the issuer refuses, ``NetworkError`` or ``ServiceBusyError`` when it cannot answer.
        """
        return self._fixed if self._grant is None else {"Authorization": f"Bearer {self._grant.token()}", **self._fixed}

    def drop(self, sent: Mapping[str, str]) -> bool:
        """Forget a token that a service has refused; return whether a new one can be obtained."""
        if self._grant is not None:
            self._grant.drop(sent["Authorization"].removeprefix("Bearer "))
        return self._grant is not None


class _ClientCredentials:
    """The client-credentials grant of one client. ``block`` is the key path that errors name."""

    def __init__(self, auth: AuthConfig, block: str, fetch: Fetch) -> None:
        self._block = block
        self._issuer = (auth.oauth_issuer_uri or "").rstrip("/")
        self._id = auth.oauth_client_id or ""
        self._secret = auth.oauth_client_secret.get_secret_value() if auth.oauth_client_secret else ""
        self._fetch = fetch
        # The digest of the secret is in the key, so a block with a wrong secret gets no token of another block.
        key = (self._issuer, self._id, hashlib.sha256(self._secret.encode()).digest())
        with _tokens_lock:
            self._token = _tokens.setdefault(key, _Token())

    def token(self) -> str:
        """Return a valid access token."""
        with self._token.lock:
            if self._token.value is not None and time.monotonic() < self._token.good_until:
                return self._token.value
            self._token.endpoint = self._token.endpoint or self._discover()
            value, lifetime = self._obtain(*self._token.endpoint)
            self._token.value = value if lifetime > _REFRESH_BEFORE_EXPIRY else None
            self._token.good_until = time.monotonic() + lifetime - _REFRESH_BEFORE_EXPIRY
            return value

    def drop(self, value: str) -> None:
        """Forget the token ``value``, unless it is replaced already."""
        with self._token.lock:
            if self._token.value == value:
                self._token.value = None

    def _obtain(self, endpoint: str, method: str) -> tuple[str, float]:
        """Return a new token, and its lifetime in seconds, 0 if the issuer gives none."""
        from authlib.oauth2 import ClientAuth  # many sites never need it

        # RFC 6749 §2.3.1 form-encodes both parts of Basic, which authlib leaves out.
        spelled = quote_plus if method == "client_secret_basic" else str
        client = ClientAuth(spelled(self._id), spelled(self._secret), method)
        _, headers, form = client.prepare("POST", endpoint, dict(_FORM), "grant_type=client_credentials")
        answer = self._fetch("POST", endpoint, headers, form.encode("ascii"))
        token = object_of(parse_json(answer.body))
        # Keycloak answers 404 with an error code of its own where the realm is not known.
        if (code := token.get("error")) and answer.status != 404:
            raise self._refused(str(code), answer.status)
        value = token.get("access_token")
        if answer.status != 200 or not isinstance(value, str) or not value.isascii() or not value.isprintable():
            raise self._wrong("answered without a usable access token", answer.status)
        if str(token.get("token_type") or "bearer").lower() != "bearer":
            raise self._wrong("gave a token that is not a bearer token", answer.status)
        try:
            return value, float(token.get("expires_in") or 0)
        except (TypeError, ValueError):
            return value, 0.0

    def _discover(self) -> tuple[str, str]:
        """Return the token endpoint and the authentication method of the client there."""
        answer = self._fetch(
            "GET", f"{self._issuer}/.well-known/openid-configuration", {"Accept": "application/json"}, None
        )
        if answer.status == 404:
            return self._trusted(self._issuer + _KEYCLOAK_PATH), "client_secret_post"
        metadata = object_of(parse_json(answer.body)) if answer.status == 200 else {}
        endpoint, named = metadata.get("token_endpoint"), metadata.get("issuer")
        if not isinstance(endpoint, str) or not endpoint.lower().startswith(("https://", "http://")):
            raise self._wrong("gave no usable OpenID configuration", answer.status)
        if not isinstance(named, str) or named.rstrip("/") != self._issuer:
            other = f" ({place(named)})" if isinstance(named, str) and named.isprintable() else ""
            hint = f"enter that one as {self._block}.oauth_issuer_uri, or correct it at the server (Keycloak: hostname)"
            what = f"names a different issuer in its metadata{other}: the client secret was not sent"
            raise self._wrong(what, hint=hint)
        methods = list_of(metadata.get("token_endpoint_auth_methods_supported"))
        basic = "client_secret_basic" in methods and "client_secret_post" not in methods
        return self._trusted(endpoint), "client_secret_basic" if basic else "client_secret_post"

    def _trusted(self, endpoint: str) -> str:
        """Return the token endpoint if it may get the secret: it has TLS, or the issuer is near and has none."""
        near = self._issuer.lower().startswith("http:") and _is_near(urlsplit(self._issuer).hostname or "")
        if not endpoint.lower().startswith("https:") and not near:
            hint = "use an https issuer; plain HTTP is for issuers on loopback or at a private address"
            raise self._wrong("gives a token endpoint without TLS: the client secret was not sent", hint=hint)
        return endpoint

    def _refused(self, code: str, status: int) -> SluiceError:
        known = code if _CODE.fullmatch(code) else "an unknown error"
        if code in ("temporarily_unavailable", "server_error"):
            return self._error(ServiceBusyError, "oauth-busy", f"cannot answer now ({known})", None, status)
        hint = f"check oauth_client_id and oauth_client_secret in {self._block}, and the client's grants"
        return self._error(ServiceError, "oauth-client", f"refused the client ({known})", hint, status)

    def _wrong(self, what: str, status: int | None = None, hint: str | None = None) -> SluiceError:
        hint = hint or f"check {self._block}.oauth_issuer_uri; for Keycloak it ends in /realms/<realm>"
        return self._error(ServiceError, "oauth-issuer", what, hint, status)

    def _error(
        self, kind: type[SluiceError], reference: str, what: str, hint: str | None, status: int | None
    ) -> SluiceError:
        message = f"{self._block}: the issuer {urlsplit(self._issuer).hostname or '?'} {what}"
        context = f"{self._block}.oauth_issuer_uri"
        return kind(reference, message, context=context, hint=hint, operation=TOKEN_OPERATION, status=status)


def _header_value(value: str, key: str) -> str:
    if not value.isascii() or not value.isprintable() or value != value.strip():
        hint = "it must be ASCII, without line breaks and without blanks at its ends"
        raise InputError("auth-value", f"the value of {key} cannot be sent in an HTTP header", context=key, hint=hint)
    return value


def _is_near(host: str) -> bool:
    """Return whether a host is this machine or one at a private address."""
    try:
        addresses = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_private for address in addresses)
