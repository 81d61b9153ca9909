"""The transport of status polls: httpx skips interim responses, and document 1 counts a 102 as an answer."""

from __future__ import annotations

import base64
import http.client
import ssl
from typing import Final
from urllib.parse import unquote, urlsplit

import httpx

from tasks.shared.http.network import Proxies

_LARGEST: Final = 64 << 20


class PollTransport(httpx.BaseTransport):
    """Sends one request over a connection of its own, with ``http.client``; a 102 is returned like any other status."""

    def __init__(self, verify: ssl.SSLContext, proxies: Proxies) -> None:
        self._verify = verify
        self._proxies = proxies

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Return the answer, its body read. Raises httpx's exceptions."""
        seconds: float = request.extensions["timeout"]["read"]
        connection, target = self._connection(request.url, seconds)
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers.raw}
        try:
            try:
                connection.connect()
            except TimeoutError as error:
                raise httpx.ConnectTimeout("") from error
            except OSError as error:
                raise httpx.ConnectError("") from error
            try:
                connection.request(request.method, target, request.read() or None, headers)
                answer = connection.getresponse()
                body = answer.read(_LARGEST)
            except TimeoutError as error:
                raise httpx.ReadTimeout("") from error
            except (OSError, http.client.HTTPException) as error:
                raise httpx.ReadError("") from error
            return httpx.Response(answer.status, headers=answer.getheaders(), content=body)
        finally:
            connection.close()

    def _connection(self, url: httpx.URL, seconds: float) -> tuple[http.client.HTTPConnection, str]:
        """Return a connection to the host or its proxy, and the target to ask for there."""
        target = url.raw_path.decode("ascii")
        proxy = self._proxies.select(url)
        if proxy is None:
            return self._to(url.scheme, url.host, url.port, seconds), target
        parts = urlsplit(proxy)
        connection = self._to(parts.scheme, parts.hostname or "", parts.port, seconds)
        login = {}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            login = {"Proxy-Authorization": f"Basic {base64.b64encode(pair).decode('ascii')}"}
        if url.scheme == "https":
            secure = http.client.HTTPSConnection(
                parts.hostname or "", parts.port or 80, timeout=seconds, context=self._verify
            )
            secure.set_tunnel(url.host, url.port or 443, login)
            return secure, target
        return connection, str(url)

    def _to(self, scheme: str, host: str, port: int | None, seconds: float) -> http.client.HTTPConnection:
        if scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=seconds, context=self._verify)
        return http.client.HTTPConnection(host, port, timeout=seconds)
