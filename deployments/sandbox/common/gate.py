"""Access to a sandbox service: Basic credentials, a bearer token or an API key, checked as a reverse proxy would."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

DEFAULT_HEADER = "x-api-key"
"""Default header of an API key (document 2, "Authentication")."""


@dataclass(frozen=True)
class RequiredCredentials:
    """Credentials of a service. Any of them is enough; without any, access is open. No ``repr`` shows them."""

    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    accepts_token: Callable[[str], bool] | None = field(default=None, repr=False)
    """Checks bearer tokens instead of ``token``, for example those of the sandbox's OAuth issuer."""
    api_key: str | None = field(default=None, repr=False)
    api_key_header: str = DEFAULT_HEADER
    """Header of the API key."""

    @property
    def is_open(self) -> bool:
        """Return True if no credentials are needed."""
        return self.username is None and self.token is None and self.accepts_token is None and self.api_key is None

    def admits(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return True if the headers, with names in lower case, contain valid credentials."""
        if self.is_open:
            return True
        given = headers.get(self.api_key_header.lower().encode(), b"")
        if self.api_key is not None and hmac.compare_digest(self.api_key.encode(), given):
            return True
        scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
        match scheme.lower(), value.strip():
            case b"basic", credentials if self.username is not None:
                wanted = base64.b64encode(f"{self.username}:{self.password or ''}".encode())
                return hmac.compare_digest(wanted, credentials)
            case b"bearer", token:
                if self.accepts_token is not None and self.accepts_token(token.decode("latin-1")):
                    return True
                return self.token is not None and hmac.compare_digest(self.token.encode(), token)
        return False

    def challenge(self) -> str:
        """Return the ``WWW-Authenticate`` header of a refusal."""
        if self.username is not None:
            return 'Basic realm="sandbox"'
        if self.token is None and self.accepts_token is None:
            return 'ApiKey realm="sandbox"'
        return 'Bearer realm="sandbox"'
