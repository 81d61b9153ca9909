"""API authentication of the local Prefect server: check each request before Prefect's code sees it.

``4-product.md`` §6 and ``docs/security.md``. Every path below ``/api`` and every websocket needs the secret of the jobs
directory (``proof.py``). A request is refused, even with the secret, if its host is not 127.0.0.1 or localhost
(DNS rebinding), if it comes from a page of another origin (cross-site requests), or if its body is not declared as JSON
(a plain form). Websockets carry the secret in their first message, which Prefect checks.

This module also serves the challenge by which clients recognise the server, and the page that signs a browser in.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flows.engine.server.proof import PROOF_PATH, SIGN_IN_PATH, answer, basic

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

_EVERYWHERE = {
    # No foreign page may embed the UI and let a person click there.
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
PRIVATE = _EVERYWHERE | {"cache-control": "no-store"}
"""Headers of an answer that no cache keeps."""
ALONE = "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
"""End of the content security policy of all our pages."""


def script_page(title: str, body: str, script: str) -> Response:
    """Return a page that runs this ``script`` and no other."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src 'self'; "
    text = (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title></head>\n'
        f'<body style="font-family: sans-serif; margin: 4em">{body}<script>{script}</script></body>\n</html>\n'
    )
    return HTMLResponse(text, headers=PRIVATE | {"content-security-policy": f"{policy}{ALONE}"})


def refused(status: int, reason: str) -> Response:
    """Return the refusal of a request."""
    return JSONResponse({"exception_message": reason}, status, headers=PRIVATE)


def is_signed_in(headers: Headers, secret: str) -> bool:
    """Return whether a request carries ``secret``, of the form ``user:password``, as the UI and Prefect's client do."""
    given, expected = headers.getlist("authorization"), f"Basic {basic(secret)}".encode()
    return len(given) == 1 and hmac.compare_digest(given[0].encode("latin-1"), expected)


_SIGN_IN = script_page("Sluice: sign in", '<p id="words">Signing in …</p>', _SCRIPT)


class RequestGuard:
    """An ASGI application that checks each request before it passes it to ``app``, on ``port`` of 127.0.0.1.

    ``opened`` is called when ``app`` has started: from then on its server answers.
    """

    def __init__(self, app: ASGIApp, *, port: int, secret: str, opened: Callable[[], None]) -> None:
        self._app = app
        self._port = port
        self._secret = secret
        self._opened = opened
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, answer it, or pass it to the application."""
        app = self._app
        if scope["type"] != "lifespan":
            refusal = self._refusal(scope)
            if scope["type"] == "http":
                app = refusal or self._own(scope) or app
            elif refusal is not None:
                await send({"type": "websocket.close", "code": 1008})
                return

        async def noted(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                self._opened()
            elif message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_EVERYWHERE)
            await send(message)

        await app(scope, receive, noted)

    def _own(self, scope: Scope) -> Response | None:
        """Return the answer to a path that is ours; ``None`` for the others."""
        if scope["path"] == PROOF_PATH:
            proof = answer(self._secret, self._port, scope["query_string"].decode("latin-1"))
            status = 200 if proof else 400
            return Response(proof or b"{}", status, media_type="application/json", headers=PRIVATE)
        if scope["path"] == SIGN_IN_PATH:
            return _SIGN_IN
        return None

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the refusal of a request; ``None`` if it may pass."""
        headers = Headers(scope=scope)
        host = [value.lower() for value in headers.getlist("host")]
        if len(host) != 1 or host[0] not in self._hosts:
            return refused(421, "this server answers to 127.0.0.1 and localhost only")
        if any(origin.lower() != f"http://{host[0]}" for origin in headers.getlist("origin")):
            return refused(403, "pages of other origins have no access")
        if scope["type"] == "websocket" or not f"{scope['path']}/".startswith("/api/"):
            return None
        # Prefect's check, after this one, allows /api/health and /api/ready without a login.
        if not is_signed_in(headers, self._secret):
            return refused(401, "Unauthorized: this needs the secret of the jobs directory; see server status")
        has_body = "transfer-encoding" in headers or any(value != "0" for value in headers.getlist("content-length"))
        kinds = headers.getlist("content-type")
        if has_body and not (len(kinds) == 1 and _is_json(kinds[0])):
            return refused(415, "a body must be declared as application/json")
        return None


def _is_json(kind: str) -> bool:
    name = kind.partition(";")[0].strip().lower()
    return name == "application/json" or (name.startswith("application/") and name.endswith("+json"))
