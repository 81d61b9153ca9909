"""Secrets in the query of a URL, as signed links carry them: such a URL is a permission, not an address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote_plus

SECRET_PARAMETERS = frozenset({
    "sig", "signature", "token", "access-token", "id-token", "refresh-token", "jwt", "api-key", "apikey", "key",
    "password", "passwd", "pwd", "secret", "client-secret", "code", "auth", "authorization", "x-amz-signature",
    "x-amz-credential", "x-amz-security-token", "x-goog-signature", "x-goog-credential",
})  # fmt: skip
"""Query parameters that carry secrets, in lower case; ``_`` in a name counts as ``-``."""

_SEPARATORS = re.compile(r"[?&;#]")


def secret_parameters(url: str) -> Iterator[tuple[str, str]]:
    """Name and value, both as written, of every parameter in the query or fragment of ``url`` that is a secret.

    A parameter without a value is none. Works on any text and never raises: what is no URL, others say.
    """
    for parameter in _SEPARATORS.split(url)[1:]:
        name, _, value = parameter.partition("=")
        if value and unquote_plus(name).strip().lower().replace("_", "-") in SECRET_PARAMETERS:
            yield name, value
