"""Credentials that a sandbox service requires: Basic, a bearer token or an API key, as a reverse proxy checks them."""

from __future__ import annotations

import base64
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

USERNAME: Final = "SLUICE_SANDBOX_USERNAME"
PASSWORD: Final = "SLUICE_SANDBOX_PASSWORD"  # noqa: S105 - the name of a variable
TOKEN: Final = "SLUICE_SANDBOX_TOKEN"  # noqa: S105 - the name of a variable
API_KEY: Final = "SLUICE_SANDBOX_API_KEY"
"""Environment variables with the credentials: other users can read process arguments."""


@dataclass(frozen=True)
class Credentials:
    """Credentials of a service. Any of them is enough; without any, access is open. No ``repr`` shows them."""

    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)

    @property
    def is_open(self) -> bool:
        """Return whether no credentials are needed."""
        return self.username is None and self.token is None and self.api_key is None

    @property
    def challenge(self) -> str:
        """Return the ``WWW-Authenticate`` header of a refusal."""
        scheme = "Basic" if self.username is not None else "ApiKey" if self.token is None else "Bearer"
        return f'{scheme} realm="sandbox"'

    def admit(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether the headers, with names in lower case, contain valid credentials."""
        if self.is_open:
            return True
        given = headers.get(b"x-api-key", b"")
        if self.api_key is not None and hmac.compare_digest(self.api_key.encode(), given):
            return True
        scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
        wanted = {b"bearer": (self.token or "").encode()}
        if self.username is not None:
            wanted[b"basic"] = base64.b64encode(f"{self.username}:{self.password or ''}".encode())
        expected = wanted.get(scheme.lower(), b"")
        return bool(expected) and hmac.compare_digest(expected, value.strip())


OPEN: Final = Credentials()


def credentials_of_environment() -> Credentials:
    """Return the credentials in the environment. Raises ``ValueError`` for an incomplete pair."""
    username, password, token, key = (os.environ.get(name) or None for name in (USERNAME, PASSWORD, TOKEN, API_KEY))
    if (username is None) != (password is None):
        raise ValueError(f"set both {USERNAME} and {PASSWORD}, or neither")
    return Credentials(username, password, token, key)
