"""Credentials of a service: Basic, OAuth 2.0 client credentials, API key (document 1, "Authentication").

Tokens are kept for the process, per issuer and client id, so that all clients of a run share one; they
are refreshed 30 seconds before they expire (document 3 §1). How a client identifies itself is authlib's. The client
decides where credentials may go, and gives the function that fetches from the issuer.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote_plus, urlsplit

from config import AuthConfig
from tasks.shared.blanked import SECRETS
from tasks.shared.errors import InputError, ServiceBusyError, ServiceError, SluiceError
from tasks.shared.http_old.answer import TOKEN_OPERATION, Answer, place

REFRESH_BEFORE_EXPIRY = 30.0
"""Seconds before its expiry from which a token is no longer used (document 3 §1)."""

_KEYCLOAK_PATH = "/protocol/openid-connect/token"
# fmt: off
_OAUTH_ERRORS = frozenset({  # RFC 6749 §5.2 and §4.1.2.1; any other code is text from the issuer
    "invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type",
    "invalid_scope", "server_error", "temporarily_unavailable",
})
# fmt: on
_FORM = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded;charset=UTF-8"}


Fetch = Callable[[str, str, Mapping[str, str], bytes | None], Answer]
"""Makes one request, of method, URL, headers and body, without credentials, repeated by the retry rules while the
failure is transient. Any status below 500 except 408 and 429 is returned; other failures raise."""

E = TypeVar("E", bound=SluiceError)


@dataclass(frozen=True)
class _Token:
    value: str = field(repr=False)
    good_until: float  # on the monotonic clock; the expiry minus the safety margin


class TokenCache:
    """Tokens of one process, by issuer, client id and a digest of the secret.

    The digest is there so that a block with a wrong secret does not pass on the token of a block with the
    right one. Thread-safe; a thread that needs a token during a fetch waits for this fetch and shares its
    outcome.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, str, bytes], _TokenEntry] = {}

    def entry(self, issuer: str, client_id: str, client_secret: str) -> _TokenEntry:
        """Return the cache entry of one client's token."""
        key = (issuer, client_id, hashlib.sha256(client_secret.encode()).digest())
        with self._lock:
            return self._entries.setdefault(key, _TokenEntry())


class _TokenEntry:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.token: _Token | None = None
        self.endpoint: tuple[str, str] | None = None  # token endpoint, authentication method
        self.failures = 0
        self.failure: SluiceError | None = None


TOKENS = TokenCache()
"""The tokens of this process."""


class ClientCredentials:
    """The client-credentials grant of one client. ``block`` is the key path that errors name."""

    def __init__(
        self,
        auth: AuthConfig,
        block: str,
        fetch: Fetch,
        warn: Callable[[str], None],
        tokens: TokenCache,
        clock: Callable[[], float],
    ) -> None:
        self._block = block
        self._issuer = (auth.oauth_issuer_uri or "").rstrip("/")
        self._client_id = auth.oauth_client_id or ""
        self._client_secret = auth.oauth_client_secret.get_secret_value() if auth.oauth_client_secret else ""
        self._fetch = fetch
        self._warn = warn
        self._named = False
        self._clock = clock
        self._entry = tokens.entry(self._issuer, self._client_id, self._client_secret)

    def token(self) -> str:
        """Return a valid access token.

        Raises ``ServiceError`` when the issuer refuses, and the errors of ``fetch`` when it does not answer.
        """
        entry = self._entry
        if not self._named:
            self._name_endpoint()
        kept = entry.token
        if kept is not None and self._clock() < kept.good_until:
            return kept.value
        failures = entry.failures
        with entry.lock:
            kept = entry.token
            if kept is not None and self._clock() < kept.good_until:
                return kept.value
            if entry.failures != failures and entry.failure is not None:
                raise _copy(entry.failure)  # of the fetch that this thread has waited for
            try:
                value, lifetime = self._obtain()
            except SluiceError as error:
                entry.failures += 1
                entry.failure = _copy(error)
                entry.endpoint = None  # it may have moved
                raise
            entry.token = None
            if lifetime is not None and lifetime > REFRESH_BEFORE_EXPIRY:
                entry.token = _Token(value, self._clock() + lifetime - REFRESH_BEFORE_EXPIRY)
            return value

    def drop(self, value: str) -> None:
        """Forget the token ``value``, unless it is replaced already."""
        with self._entry.lock:
            if self._entry.token is not None and self._entry.token.value == value:
                self._entry.token = None

    def _obtain(self) -> tuple[str, float | None]:
        """Return a new token, and its lifetime in seconds if the issuer gives one."""
        # Loaded here: most commands and many sites never need it.
        from authlib.oauth2 import ClientAuth

        if self._entry.endpoint is None:
            self._entry.endpoint = self._discover()
            self._name_endpoint()
        endpoint, method = self._entry.endpoint
        # RFC 6749 §2.3.1 form-encodes both parts of Basic, which authlib leaves out.
        spelled = quote_plus if method == "client_secret_basic" else str
        client = ClientAuth(spelled(self._client_id), spelled(self._client_secret), method)
        _, headers, form = client.prepare("POST", endpoint, dict(_FORM), "grant_type=client_credentials")
        reply = self._fetch("POST", endpoint, headers, form.encode("ascii"))
        token = _object(reply.body)
        if reply.status == 404 and "error" in token:  # Keycloak, about a realm that does not exist
            raise self._unusable("has no token endpoint there", 404)
        if code := token.get("error"):
            raise self._refused(str(code), reply.status)
        if not token or not 200 <= reply.status < 300:
            raise self._unusable("answered something that is no token", reply.status)
        return self._checked_value(token, reply.status), _seconds(token.get("expires_in"))

    def _checked_value(self, token: dict[str, Any], status: int) -> str:
        value = token.get("access_token")
        if not isinstance(value, str) or not value or not value.isascii() or not value.isprintable():
            raise self._unusable("answered without a usable access_token", status)
        SECRETS.token(value)
        if str(token.get("token_type") or "bearer").lower() != "bearer":
            raise self._unusable("gave a token that is no bearer token", status)
        return value

    def _discover(self) -> tuple[str, str]:
        """Return the token endpoint and the authentication method of the client there."""
        url = f"{self._issuer}/.well-known/openid-configuration"
        reply = self._fetch("GET", url, {"Accept": "application/json"}, None)
        if reply.status == 404:
            return self._trusted(self._issuer + _KEYCLOAK_PATH), "client_secret_post"
        metadata = _object(reply.body) if 200 <= reply.status < 300 else {}
        endpoint = metadata.get("token_endpoint")
        if not isinstance(endpoint, str) or not _is_http(endpoint):
            raise self._unusable("gave no usable OpenID configuration", reply.status)
        named = metadata.get("issuer")
        if not isinstance(named, str) or named.rstrip("/") != self._issuer:
            if not isinstance(named, str) or not named.isprintable() or not _is_http(named):
                raise self._differs("gives no issuer in its metadata", f"check {self._block}.oauth_issuer_uri")
            raise self._differs(
                "gives another issuer in its metadata",
                f"the metadata give the issuer {place(named)}: if you mean that one, enter it as "
                f"{self._block}.oauth_issuer_uri; else make the configured URL the server's public URL "
                "(Keycloak: hostname)",
            )
        methods = metadata.get("token_endpoint_auth_methods_supported")
        only_basic = (
            isinstance(methods, list) and "client_secret_basic" in methods and "client_secret_post" not in methods
        )
        return self._trusted(endpoint), "client_secret_basic" if only_basic else "client_secret_post"

    def _trusted(self, endpoint: str) -> str:
        """Return the token endpoint, if it may get the secret: with TLS, or of an issuer without TLS that is near."""
        if not endpoint.lower().startswith("https:") and not _is_near(self._issuer):
            raise self._differs(
                "gives a token endpoint without TLS",
                "use an https issuer with an https token endpoint; plain HTTP is for issuers on loopback or at a "
                "private address",
            )
        return endpoint

    def _name_endpoint(self) -> None:
        """Warn once that the secret is sent to another host than the issuer's."""
        if (known := self._entry.endpoint) is None:
            return
        self._named = True
        if (host := urlsplit(known[0]).hostname) != self._host:
            self._warn(f"{self._block}: the token endpoint of the issuer {self._host} is on another host, {host}")

    @property
    def _host(self) -> str:
        return urlsplit(self._issuer).hostname or "?"

    def _refused(self, code: str, status: int) -> SluiceError:
        known = code if code in _OAUTH_ERRORS else "an unknown error"
        if code in ("temporarily_unavailable", "server_error"):
            return self._error(ServiceBusyError, "oauth-busy", f"cannot answer now ({known})", status=status)
        return self._error(
            ServiceError,
            "oauth-client" if code in ("invalid_client", "unauthorized_client") else "oauth-refused",
            f"refused the client ({known})",
            key="oauth_client_id",
            hint=f"check oauth_client_id and oauth_client_secret in {self._block}; the client must be allowed the "
            "client credentials grant",
            status=status,
        )

    def _differs(self, what: str, hint: str) -> ServiceError:
        return self._error(ServiceError, "oidc-issuer-differs", f"{what}: the client secret was not sent", hint=hint)

    def _unusable(self, what: str, status: int) -> ServiceError:
        hint = f"check {self._block}.oauth_issuer_uri; for Keycloak it ends in /realms/<realm>"
        return self._error(ServiceError, "oauth-issuer", what, hint=hint, status=status)

    def _error(
        self,
        kind: type[E],
        reference: str,
        what: str,
        *,
        key: str = "oauth_issuer_uri",
        hint: str | None = None,
        status: int | None = None,
    ) -> E:
        return kind(
            reference,
            f"{self._block}: the issuer {self._host} {what}",
            context=f"{self._block}.{key}",
            hint=hint,
            operation=TOKEN_OPERATION,
            status=status,
        )


class Credentials:
    """The headers that authenticate one service's requests.

    ``service`` is the key under ``services``; errors name the block by it. ``fetch`` and ``warn`` are
    used for OAuth 2.0 only. Raises ``InputError`` (``auth-value``) for a value that a header cannot contain.
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
            self._oauth = ClientCredentials(auth, block, fetch, warn, tokens, clock)
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
        """Return whether a 401 can be answered with a fresh token."""
        return self._oauth is not None

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers for one request; a token is obtained if none is valid.

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


def _object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in an answer; empty for anything else."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _seconds(lifetime: Any) -> float | None:
    """``expires_in`` as a number of seconds; ``None`` for anything that makes no sense as one."""
    try:
        seconds = float(lifetime)
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 < seconds < float("inf") else None


def _copy(error: SluiceError) -> SluiceError:
    """Return the same error without its traceback, whose frames hold secrets."""
    twin = type(error).__new__(type(error), *error.args)
    twin.__dict__.update(error.__dict__)
    return twin


def _is_near(issuer: str) -> bool:
    """Return whether an issuer without TLS is on this machine, or has only addresses of private networks."""
    parts = urlsplit(issuer)
    if parts.scheme != "http":
        return False
    try:
        found = socket.getaddrinfo(parts.hostname, None, proto=socket.IPPROTO_TCP)
        addresses = [ipaddress.ip_address(str(address[4][0]).partition("%")[0]) for address in found]
    except (OSError, ValueError):
        return False
    return all(address.is_private or address.is_loopback for address in addresses)


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
