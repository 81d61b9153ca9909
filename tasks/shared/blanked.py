"""Replace credentials in what is kept of an answer (docs/services.md): some services and gateways echo requests.

The values of ``Authorization`` and ``Proxy-Authorization`` are known by their form. What this process remembers, in
memory only, are the secrets of the configuration, passwords of proxies, and keys of anonymization rules.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote_plus

from pydantic import BaseModel, SecretStr

MARK: Final = b"[blanked]"

LEAST: Final = 4
"""Characters of a secret that is replaced: a shorter one is found in too much that is none."""

_SENT: Final = re.compile(rb"\b(Basic|Bearer) +[\w.~+/=-]+|\beyJ[\w-]+\.[\w-]+\.[\w-]*", re.IGNORECASE)
"""What an ``Authorization`` looks like, and a token alone."""


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
    """Remember a secret, also as a form spells it."""
    global _secrets
    if len(value) >= LEAST:
        _secrets |= {value.encode(), quote_plus(value).encode()}


def blanked(data: bytes) -> bytes:
    """``data`` as it may be kept: with ``MARK`` for every secret of this process, the longest first."""
    for secret in sorted(_secrets, key=len, reverse=True):
        data = data.replace(secret, MARK)
    return _SENT.sub(MARK, data)


def forget() -> None:
    """Forget everything."""
    global _secrets
    _secrets = frozenset()
