"""Who may use a sandbox service: Basic credentials or a bearer token, checked as a reverse proxy would."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Gate:
    """The credentials a service asks for; without any it is open. Nothing here appears in a ``repr``."""

    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    accepts_token: Callable[[str], bool] | None = field(default=None, repr=False)
    """Decides about bearer tokens in place of ``token``, for example for those of the sandbox's OAuth
    issuer."""

    @property
    def is_open(self) -> bool:
        """Whether anybody may enter."""
        return self.username is None and self.token is None and self.accepts_token is None

    def admits(self, authorization: str | None) -> bool:
        """Whether this ``Authorization`` header opens the gate."""
        if self.is_open:
            return True
        scheme, _, value = (authorization or "").partition(" ")
        if scheme.lower() == "basic" and self.username is not None:
            wanted = base64.b64encode(f"{self.username}:{self.password or ''}".encode())
            return hmac.compare_digest(wanted, value.strip().encode())
        if scheme.lower() == "bearer":
            if self.accepts_token is not None and self.accepts_token(value.strip()):
                return True
            return self.token is not None and hmac.compare_digest(self.token.encode(), value.strip().encode())
        return False

    def challenge(self) -> str:
        """The ``WWW-Authenticate`` header of a refusal."""
        return 'Basic realm="sandbox"' if self.username is not None else 'Bearer realm="sandbox"'
