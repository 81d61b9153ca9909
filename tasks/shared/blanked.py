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


class Secrets:
    """Secrets to replace with ``MARK``. Thread-safe."""

    def __init__(self) -> None:
        self._texts: frozenset[bytes] = frozenset()

    def config(self, model: BaseModel) -> None:
        """Remember every secret of a configuration, or of a part of it."""
        for name in type(model).model_fields:
            value = getattr(model, name)
            if isinstance(value, BaseModel):
                self.config(value)
            elif isinstance(value, SecretStr):
                self.text(value.get_secret_value())
            elif name == "access_key_id" and value:
                self.text(value)

    def text(self, value: str) -> None:
        """Remember a secret, also as a form spells it."""
        if len(value) >= LEAST:
            self._texts |= {value.encode(), quote_plus(value).encode()}

    def blanked(self, data: bytes) -> bytes:
        """``data`` with ``MARK`` for every secret, the longest first."""
        for secret in sorted(self._texts, key=len, reverse=True):
            data = data.replace(secret, MARK)
        return _SENT.sub(MARK, data)

    def clear(self) -> None:
        """Forget everything."""
        self._texts = frozenset()


SECRETS: Final = Secrets()
"""The secrets of this process."""


def blanked(data: bytes) -> bytes:
    """``data`` as it may be kept: every secret of this process is replaced."""
    return SECRETS.blanked(data)
