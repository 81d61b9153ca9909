"""Replace credentials in what is kept of an answer (document 3 §1): some services and gateways echo requests.

This process remembers, in memory only, what it may send: the secrets of the configuration, the ``Authorization`` and
``Proxy-Authorization`` made of them, API keys, bearer tokens, and keys of anonymization rules.
"""

from __future__ import annotations

import base64
import threading
from collections import deque
from typing import Final
from urllib.parse import quote_plus

from pydantic import BaseModel, SecretStr

from config import AuthConfig

MARK: Final = b"[blanked]"

LEAST: Final = 4
"""Characters of a secret that is replaced: a shorter one is found in too much that is none."""

TOKENS_KEPT: Final = 64
"""Tokens that are remembered: an issuer may hand out a new one for each request."""


class Secrets:
    """Secrets to replace with ``MARK``. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: set[bytes] = set()
        self._tokens: deque[bytes] = deque(maxlen=TOKENS_KEPT)

    def config(self, model: BaseModel) -> None:
        """Remember every secret of a configuration, or of a part of it."""
        if isinstance(model, AuthConfig):
            self.auth(model)
        for name in type(model).model_fields:
            value = getattr(model, name)
            if isinstance(value, BaseModel):
                self.config(value)
            elif isinstance(value, SecretStr):
                self.text(value.get_secret_value())
            elif name == "access_key_id" and value:
                self.text(value)

    def auth(self, auth: AuthConfig) -> None:
        """Remember what an auth block makes of requests."""
        given = (auth.password, auth.oauth_client_secret, auth.api_key)
        password, client_secret, api_key = (secret.get_secret_value() if secret else "" for secret in given)
        if auth.username is not None:
            self.pair(auth.username, password)
        if client_secret:
            self.text(client_secret)
            self.pair(quote_plus(auth.oauth_client_id or ""), quote_plus(client_secret))
        self.text(api_key)

    def pair(self, user: str, password: str) -> None:
        """Remember the password, and the value of ``Basic`` made of user and password."""
        self.text(password)
        self.text(base64.b64encode(f"{user}:{password}".encode()).decode())

    def text(self, value: str) -> None:
        """Remember a secret."""
        if len(value) >= LEAST:
            with self._lock:
                self._texts.add(value.encode())

    def token(self, value: str) -> None:
        """Remember a bearer token, in place of the oldest one when there are many."""
        with self._lock:
            if value.encode() not in self._tokens:
                self._tokens.append(value.encode())

    def blanked(self, data: bytes) -> bytes:
        """``data`` with ``MARK`` for every secret, the longest first."""
        with self._lock:
            secrets = sorted({*self._texts, *self._tokens}, key=len, reverse=True)
        for secret in secrets:
            data = data.replace(secret, MARK)
        return data

    def clear(self) -> None:
        """Forget everything."""
        self.__dict__.update(Secrets().__dict__)


SECRETS: Final = Secrets()
"""The secrets of this process."""


def blanked(data: bytes) -> bytes:
    """``data`` as it may be kept: every secret of this process is replaced."""
    return SECRETS.blanked(data)
