"""No credential stays in what is kept of an answer (document 3 §1): some services and gateways echo requests.

This process remembers, in memory only, what it may have sent: the secrets of the configuration, the ``Authorization``
and ``Proxy-Authorization`` they make, API keys, bearer tokens, keys of anonymization rules. ``blanked`` puts ``MARK``
in their place and leaves every other byte as it is; whoever keeps an answer, or a part of one, keeps it through that.

A secret is found as it is and as JSON, a URL, HTML and Base64 spell it. One of fewer than ``LEAST`` characters would be
found in too much that is none: it is blanked only behind the name it is sent under (``x-api-key``, ``client_secret``),
and inside the whole of a header's value.
"""

from __future__ import annotations

import base64
import html
import json
import re
import threading
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import quote, quote_plus

from pydantic import BaseModel, SecretStr

from config import AuthConfig

MARK: Final = b"[blanked]"

LEAST: Final = 6
"""Characters from which a secret is blanked wherever it stands."""

TOKENS_KEPT: Final = 64
"""Tokens that are remembered: an issuer may hand out a fresh one for each request."""

_BETWEEN: Final = rb"(?:<[^<>]{0,64}>|[^A-Za-z0-9<]){1,16}"
"""What may stand between the name of a header or parameter and its value: JSON, a form, a table in HTML."""
_CONTEXT: Final = 2048
"""Bytes of a stream that are looked at together, beside the longest spelling: a name and its value."""


class Secrets:
    """Secrets to replace with ``MARK``. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: set[tuple[str, tuple[str, ...]]] = set()
        self._tokens: dict[str, set[bytes]] = {}
        self._fixed: set[bytes] = set()
        self._short: set[bytes] = set()
        self._spellings: tuple[bytes, ...] = ()
        self._named: re.Pattern[bytes] | None = None

    def config(self, model: BaseModel) -> None:
        """Remember every secret of a configuration, or of a part of it."""
        if isinstance(model, AuthConfig):
            self.auth(model)
        for name in type(model).model_fields:
            value = getattr(model, name)
            if isinstance(value, BaseModel):
                self.config(value)
            elif isinstance(value, SecretStr):
                self.text(value.get_secret_value(), names=(name,))
            elif name == "access_key_id" and value:
                self.text(value, names=(name, "AWSAccessKeyId", "Credential"))

    def auth(self, auth: AuthConfig) -> None:
        """Remember what an auth block makes of requests."""
        given = (auth.password, auth.oauth_client_secret, auth.api_key)
        password, client_secret, api_key = (secret.get_secret_value() if secret else "" for secret in given)
        if auth.username is not None:
            self.pair(auth.username, password)
        if client_secret:
            self.text(client_secret, names=("client_secret",))
            self.pair(quote_plus(auth.oauth_client_id or ""), quote_plus(client_secret))
        if api_key:
            self.text(api_key, names=(auth.api_key_header, "api_key"))

    def pair(self, user: str, password: str) -> None:
        """Remember user and password of ``Basic``, alone and together."""
        self.text(password, names=("password",))
        if password:
            self.text(f"{user}:{password}")
        for encoding in ("utf8", "latin1"):
            try:
                value = base64.b64encode(f"{user}:{password}".encode(encoding)).decode()
            except UnicodeEncodeError:
                continue
            self.text(value, names=("Basic",))
            self.text(f"Basic {value}")

    def text(self, value: str, *, names: Iterable[str] = ()) -> None:
        """Remember a secret; ``names`` are those of headers and parameters it is sent in."""
        names = tuple(names)
        if not value or (value, names) in self._known:
            return
        with self._lock:
            self._known.add((value, names))
            spelled = _spellings(value)
            if len(value) >= LEAST:
                self._fixed |= spelled
            else:
                self._short |= {_behind(name, spelling) for name in names for spelling in spelled}
            self._renew()

    def token(self, value: str) -> None:
        """Remember a bearer token, in place of the oldest one when there are many."""
        with self._lock:
            if value not in self._tokens:
                self._tokens[value] = _spellings(value)
                while len(self._tokens) > TOKENS_KEPT:
                    del self._tokens[next(iter(self._tokens))]
                self._renew()

    def blanked(self, data: bytes) -> bytes:
        """``data`` with ``MARK`` for every secret."""
        for spelling in self._spellings:
            data = data.replace(spelling, MARK)
        return data if self._named is None else self._named.sub(_without_value, data)

    def pieces(self, data: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the stream with ``MARK`` for every secret, also for one split over two pieces."""
        held = b""
        for piece in data:
            held = self.blanked(held + piece)
            kept = max(map(len, self._spellings), default=0) + (_CONTEXT if self._named else 0)
            if len(held) > kept:
                yield held[: len(held) - kept]
                held = held[len(held) - kept :]
        yield held

    def clear(self) -> None:
        """Forget everything."""
        self.__dict__.update(Secrets().__dict__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._spellings)} spellings)"

    def _renew(self) -> None:
        # The longest first: a header's value before the secret that it ends in.
        every = self._fixed.union(*self._tokens.values())
        self._spellings = tuple(sorted(every, key=lambda spelling: (-len(spelling), spelling)))
        if self._short:
            self._named = re.compile(b"(?:" + b"|".join(sorted(self._short)) + rb")(?![A-Za-z0-9])")


SECRETS: Final = Secrets()
"""The secrets of this process."""


def blanked(data: bytes) -> bytes:
    """``data`` as it may be kept: every secret of this process is blanked."""
    return SECRETS.blanked(data)


def _behind(name: str, spelling: bytes) -> bytes:
    """Return a pattern with a value as its only group, after the name of its header or parameter in any case."""
    parts = [re.escape(part.encode()) for part in re.split("[-_]", name)]
    return b"(?i:" + b"[-_]".join(parts) + b")" + _BETWEEN + b"(" + re.escape(spelling) + b")"


def _without_value(found: re.Match[bytes]) -> bytes:
    return found.group()[: found.start(found.lastindex or 0) - found.start()] + MARK


def _spellings(value: str) -> set[bytes]:
    """Return the spellings in which servers echo a secret."""
    plain = [value.encode()]
    if not value.isascii():
        plain += [value.encode("latin-1")] if all(ord(letter) < 256 for letter in value) else []
    coded = [form for data in plain for form in _base64(data) if len(form) >= LEAST]
    texts = [value, *coded]
    return {*plain, *(spelling.encode() for text in texts for spelling in _as_text(text))}


def _base64(data: bytes) -> set[str]:
    forms = {base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()}
    return forms | {form.rstrip("=") for form in forms}


def _as_text(text: str) -> set[str]:
    found = {text, html.escape(text), html.escape(text, quote=False), html.escape(text).replace("&#x27;", "&#39;")}
    for safe in ("", "/", "!'()*"):
        urls = {quote(text, safe=safe), quote_plus(text, safe=safe)}
        found |= urls | {re.sub("%[0-9A-F]{2}", lambda code: code.group().lower(), url) for url in urls}
    inside = _as_json(text)
    return found | inside | {twice for once in inside for twice in _as_json(once)}


def _as_json(text: str) -> set[str]:
    """Inside a JSON string. Some writers escape the slash, some what means something to HTML."""
    found = {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    found |= {form.replace("/", "\\/") for form in found}
    for letters in ("<>&", "<>&'\"+`"):
        for style in ("\\u{:04x}", "\\u{:04X}"):
            escaped = {letter: style.format(ord(letter)) for letter in letters}
            slashes = {"\\": "\\\\"} | ({} if '"' in escaped else {'"': '\\"'})
            found.add("".join((slashes | escaped).get(letter, letter) for letter in text))
    return found
