"""API authentication of the local Prefect server: check each request before Prefect's code sees it.

``4-product.md`` §6 and ``docs/security.md``. Every path below ``/api`` and every websocket needs the secret of the jobs
directory (``server_proof.py``). A request is refused, even with the secret, if its host is not 127.0.0.1 or localhost
(DNS rebinding), if it comes from a page of another origin (cross-site requests), or if its body is not declared as JSON
(a plain form). Websockets carry the secret in their first message, which Prefect checks.

This module also serves the challenge by which clients recognise the server, and the page that signs a browser in.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from flows.engine.server_proof import PROOF_PATH, answer, basic

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SIGN_IN_PATH = "/sluice/sign-in"

_SCRIPT = """
const words = document.getElementById("words");
const key = location.hash.slice(1);
history.replaceState(null, "", location.pathname);
const refused = () => { words.textContent = "This link does not open the server (any more). " +
  "Ask for a new one on the machine that runs it: sluice server status"; };
if (!key) refused();
else fetch("/api/admin/version", {headers: {Authorization: "Basic " + key}}).then((answer) => {
  if (!answer.ok) return refused();
  localStorage.setItem("prefect-password", key);
  location.replace("/");
}, refused);
"""

_SIGN_IN = f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>Sluice: sign in</title></head>
<body style="font-family: sans-serif; margin: 4em"><p id="words">Signing in …</p><script>{_SCRIPT}</script></body>
</html>
"""

_SCRIPT_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()

_EVERYWHERE = [
    # No page of somebody else may show the UI inside itself and let a person click there.
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
_SIGN_IN_HEADERS = [
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (
        b"content-security-policy",
        f"default-src 'none'; script-src 'sha256-{_SCRIPT_HASH}'; style-src 'unsafe-inline'; connect-src 'self'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'".encode(),
    ),
]
_JSON = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]


def sign_in_link(ui: str, secret: str) -> str:
    """Return the link that opens the UI at ``ui`` signed in. A browser sends the part after ``#`` to no server."""
    return f"{ui}{SIGN_IN_PATH}#{basic(secret)}"


class RequestGuard:
    """An ASGI application that checks each request before it passes it to ``app``, on ``port`` of 127.0.0.1.

    ``opened`` is called when ``app`` has started: from then on its server answers.
    """

    def __init__(self, app: App, *, port: int, secret: str, opened: Callable[[], None]) -> None:
        self._app = app
        self._port = port
        self._secret = secret
        self._opened = opened
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self._credentials = f"Basic {basic(secret)}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, answer it, or pass it to the application."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, self._lifespan(send))
            return
        refusal = self._refusal(scope)
        if scope["type"] == "websocket":
            if refusal is None:
                await self._app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})
            return
        send = _hardened(send)
        if refusal is not None:
            status, reason = refusal
            await _reply(send, status, _JSON, json.dumps({"exception_message": reason}).encode())
        elif scope["path"] == PROOF_PATH:
            proof = answer(self._secret, self._port, scope["query_string"].decode("latin-1"))
            await _reply(send, 200 if proof else 400, _JSON, proof or b"{}")
        elif scope["path"] == SIGN_IN_PATH:
            await _reply(send, 200, _SIGN_IN_HEADERS, _SIGN_IN.encode())
        else:
            await self._app(scope, receive, send)

    def _lifespan(self, send: Send) -> Send:
        async def told(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                self._opened()
            await send(message)

        return told

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and reason of a refusal; ``None`` for a request that may pass."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        host = [value.decode("latin-1").lower() for value in headers.get(b"host", [])]
        if len(host) != 1 or host[0] not in self._hosts:
            return 421, "this server answers to 127.0.0.1 and localhost only"
        if any(origin.decode("latin-1").lower() != f"http://{host[0]}" for origin in headers.get(b"origin", [])):
            return 403, "pages of other origins have no access"
        if scope["type"] == "websocket" or not _below_api(scope["path"]):
            return None
        credentials = headers.get(b"authorization", [])
        if len(credentials) != 1 or not hmac.compare_digest(credentials[0], self._credentials):
            return 401, "Unauthorized: this needs the secret of the jobs directory; see server status"
        kinds = headers.get(b"content-type", [])
        if _has_body(headers) and not (len(kinds) == 1 and _is_json(kinds[0])):
            return 415, "a body must be declared as application/json"
        return None


def _below_api(path: str) -> bool:
    return path == "/api" or path.startswith("/api/")


def _has_body(headers: dict[bytes, list[bytes]]) -> bool:
    return b"transfer-encoding" in headers or any(value != b"0" for value in headers.get(b"content-length", []))


def _is_json(kind: bytes) -> bool:
    name = kind.partition(b";")[0].strip().lower()
    return name == b"application/json" or (name.startswith(b"application/") and name.endswith(b"+json"))


def _hardened(send: Send) -> Send:
    async def told(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_EVERYWHERE]}
        await send(message)

    return told


async def _reply(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
