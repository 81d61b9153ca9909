"""Replace credentials in stored answers (docs/services.md): some services and gateways echo requests.

Values of ``Authorization`` and ``Proxy-Authorization`` are recognized by their form. The other credentials are
remembered, in memory only: secrets of the configuration, passwords of proxies, and keys of anonymization rules.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote_plus

from pydantic import BaseModel, SecretStr

MARK: Final = b"[blanked]"

LEAST: Final = 4
"""Characters of the shortest secret that is replaced: a shorter text occurs in too many other places."""

_SENT: Final = re.compile(rb"\b(Basic|Bearer) +[\w.~+/=-]+|\beyJ[\w-]+\.[\w-]+\.[\w-]*", re.IGNORECASE)
"""Matches the value of an ``Authorization`` header, and a JSON Web Token alone."""

_secrets: frozenset[bytes] = frozenset()


def remember(model: BaseModel) -> None:
    """Remember every secret of a configuration, or of a part of it."""
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            remember(value)
        elif isinstance(value, SecretStr):
            remember_text(value.get_secret_value())
        elif name == "access_key_id" and value:
            remember_text(value)


def remember_text(value: str) -> None:
    """Remember a secret, as it is and form-encoded."""
    global _secrets
    if len(value) >= LEAST:
        _secrets |= {value.encode(), quote_plus(value).encode()}


def blanked(data: bytes) -> bytes:
    """Return ``data`` with ``MARK`` in place of each remembered secret and each ``Authorization`` value."""
    for secret in sorted(_secrets, key=len, reverse=True):
        data = data.replace(secret, MARK)
    return _SENT.sub(MARK, data)


def forget() -> None:
    """Forget all secrets."""
    global _secrets
    _secrets = frozenset()
