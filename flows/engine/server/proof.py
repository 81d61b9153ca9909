"""The address of a jobs directory's local Prefect server, and the proofs between the server and its users.

``4-product.md`` §6. ``HOME/server.json`` (0600) holds the address of the server for later commands. A killed server
leaves the file, so it proves nothing. The secret is in ``HOME/api-secret`` (0600), in the form ``user:password``
of Prefect's ``PREFECT_API_AUTH_STRING``. A user of the address first sends a random challenge; the server must answer
with a keyed hash over it. The secret itself is never sent before. The address is part of the hashed text, so that
another listener cannot pass the challenge on to the real server.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
import socket
import time
from pathlib import Path

import msgspec

from tasks.shared.files.out_file import write_file

SECRET_FILE = "api-secret"  # noqa: S105 - a name
PROOF_PATH = "/sluice/proof"
SIGN_IN_PATH = "/sluice/sign-in"
PROOF_SECONDS = 5.0
"""Limit for a proof, in seconds, from connecting to the last byte of the answer."""

START_TIMEOUT = 120.0
"""Seconds to wait for the server: a cold disk and a fresh database together take up to half a minute."""

NAME = "server.json"
"""The file that names the server of a ``HOME``."""

STARTED = b"started"
"""The content of ``HOME/server.lock`` from the moment on when the server that holds it answers."""

_FORM = re.compile(r"sluice:[A-Za-z0-9_-]{43}")
_CHALLENGE = re.compile(r"nonce=([0-9a-f]{64})")
_LARGEST = 4096


class Announced(msgspec.Struct, frozen=True):
    """A server: its address, its process, and whether it stays without users.

    ``stay`` is set by ``server start``. ``linger`` are the seconds that a user requested and the server has not begun
    to count; ``until`` is the end of a lingering server, in seconds since 1970.
    """

    url: str
    pid: int
    stay: bool = False
    linger: float = 0.0
    until: float | None = None


def announced(home: Path) -> Announced | None:
    """Return the content of ``server.json`` in ``home``; ``None`` without a readable one."""
    try:
        return msgspec.json.decode((home / NAME).read_bytes(), type=Announced)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def announce(home: Path, server: Announced) -> None:
    """Write ``server.json``; the server removes it when it ends. The caller holds ``start.lock``."""
    write_file(home / NAME, msgspec.json.encode(server))


def withdraw(home: Path, pid: int) -> None:
    """Remove ``server.json``, unless it names another server by now."""
    found = announced(home)
    if found is not None and found.pid == pid:
        (home / NAME).unlink(missing_ok=True)


class NotProvedError(Exception):
    """The listener is not the server of this jobs directory, or does not answer; the message gives the reason."""


def read_secret(home: Path) -> str | None:
    """Return the secret of the jobs directory; ``None`` if it is missing."""
    try:
        text = (home / SECRET_FILE).read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return text if _FORM.fullmatch(text) else None


def make_secret(home: Path) -> str:
    """Write and return a new secret for the jobs directory. The old one becomes invalid."""
    secret = f"sluice:{secrets.token_urlsafe(32)}"
    write_file(home / SECRET_FILE, secret.encode())
    return secret


def basic(secret: str) -> str:
    """Return the secret as Prefect's UI stores it and as ``Authorization: Basic`` carries it."""
    return base64.b64encode(secret.encode()).decode()


def sign_in_link(ui: str, secret: str) -> str:
    """Return the link that opens the UI at ``ui`` signed in. A browser sends the part after ``#`` to no server."""
    return f"{ui}{SIGN_IN_PATH}#{basic(secret)}"


def proof_of(secret: str, port: int, nonce: str) -> str:
    """Return in hex the answer to ``nonce`` that only a server with the secret on ``port`` can give."""
    text = f"sluice prefect server\n127.0.0.1:{port}\n{nonce}\nready"
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def answer(secret: str, port: int, query: str) -> bytes | None:
    """Return the server's answer to ``GET /sluice/proof?<query>``; ``None`` if the query is not a challenge."""
    challenge = _CHALLENGE.fullmatch(query)
    if challenge is None:
        return None
    return json.dumps({"proof": proof_of(secret, port, challenge[1])}).encode()


def prove(secret: str, port: int, *, seconds: float = PROOF_SECONDS) -> None:
    """Challenge the server that listens on ``port`` of 127.0.0.1. A starting server answers when it has started.

    Raises:
        NotProvedError: no server listens, the answer is not a proof, or is missing after ``seconds``.
    """
    nonce = secrets.token_hex(32)
    body = _http_get(port, f"{PROOF_PATH}?nonce={nonce}", time.monotonic() + seconds)
    try:
        proof = json.loads(body)["proof"]
    except (ValueError, KeyError, TypeError, RecursionError):
        proof = None
    if not isinstance(proof, str):
        raise NotProvedError("another server answers")
    if not hmac.compare_digest(proof.encode(), proof_of(secret, port, nonce).encode()):
        raise NotProvedError("it does not have the secret of this jobs directory")


def _http_get(port: int, path: str, deadline: float) -> bytes:
    """Return the body of one answer. The deadline covers all of it, even if bytes keep arriving slowly."""

    def seconds_left() -> float:
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds

    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
    received = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=seconds_left()) as connection:
            connection.sendall(request.encode())
            while len(received) <= _LARGEST:
                connection.settimeout(seconds_left())
                data = connection.recv(_LARGEST)
                if not data:
                    break
                received += data
    except TimeoutError:
        raise NotProvedError("it does not answer") from None
    except OSError as error:
        raise NotProvedError(error.strerror or type(error).__name__) from None
    head, _, body = received.partition(b"\r\n\r\n")
    if not re.match(rb"HTTP/1\.[01] 200[ \r]", head) or len(received) > _LARGEST:
        raise NotProvedError("another server answers")
    return body
