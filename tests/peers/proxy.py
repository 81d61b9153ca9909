"""A forward HTTP proxy for tests: absolute URLs, CONNECT, Basic authentication, counters.

The proxy resolves the made-up host names in ``hosts`` itself, so a request to one of them proves that the client used
the proxy. Plain HTTP gets one request per connection; a tunnel lasts until either side ends it.
"""

from __future__ import annotations

import base64
import hmac
import selectors
import socket
import socketserver
import threading
from collections.abc import Mapping
from typing import Self, cast
from urllib.parse import urlsplit

_LARGEST_HEAD = 64 * 1024
_IDLE_SECONDS = 30.0
_HOP_BY_HOP = frozenset(
    {"connection", "proxy-connection", "proxy-authorization", "keep-alive", "te", "upgrade", "trailer"}
)


class _Listener(socketserver.ThreadingTCPServer):
    """The listening socket of a proxy."""

    daemon_threads = True
    block_on_close = True
    allow_reuse_address = True
    proxy: ForwardProxy

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that disconnects."""


class ForwardProxy:
    """The proxy, listening on loopback from ``start`` to ``stop`` (or as a context manager).

    ``credentials`` (user, password) are required if given. ``hosts`` maps made-up names, as ``name`` or ``name:port``,
    to the actual address. ``requests`` and ``tunnels`` count what was forwarded, ``refused`` requests without valid
    credentials; ``targets`` are the requested hosts, in order.
    """

    def __init__(
        self,
        *,
        credentials: tuple[str, str] | None = None,
        hosts: Mapping[str, tuple[str, int]] | None = None,
    ) -> None:
        self._credentials = credentials
        self._hosts = dict(hosts or {})
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.requests = 0
        self.tunnels = 0
        self.refused = 0
        self.targets: list[str] = []
        self._listener = _Listener(("127.0.0.1", 0), _Handler)
        self._listener.proxy = self
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """Port of the proxy."""
        return int(self._listener.server_address[1])

    @property
    def url(self) -> str:
        """URL of the proxy, without credentials."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start listening."""
        self._thread = threading.Thread(
            target=self._listener.serve_forever, kwargs={"poll_interval": 0.05}, name=f"proxy-{self.port}", daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """Close every connection and free the port."""
        if self._thread is not None:
            self._listener.shutdown()
            self._thread.join()
        with self._lock:
            for sock in self._open:
                _shut(sock)
        self._listener.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def admits(self, authorization: str) -> bool:
        """Return True if this ``Proxy-Authorization`` value is valid."""
        if self._credentials is None:
            return True
        wanted = "Basic " + base64.b64encode(":".join(self._credentials).encode()).decode("ascii")
        if hmac.compare_digest(wanted, authorization):
            return True
        with self._lock:
            self.refused += 1
        return False

    def connect(self, host: str, port: int, *, tunnel: bool) -> socket.socket:
        """Return a connection to the actual address of ``host``. Raises ``OSError``."""
        with self._lock:
            self.targets.append(f"{host}:{port}")
            if tunnel:
                self.tunnels += 1
            else:
                self.requests += 1
        address = self._hosts.get(f"{host}:{port}") or self._hosts.get(host) or (host, port)
        return socket.create_connection(address, timeout=10)

    def track(self, sock: socket.socket, *, ended: bool = False) -> None:
        """Remember an open connection, to close it with the proxy; forget a connection that has ended."""
        with self._lock:
            if ended:
                self._open.discard(sock)
            else:
                self._open.add(sock)


class _Handler(socketserver.BaseRequestHandler):
    """One client connection."""

    request: socket.socket
    server: _Listener

    def handle(self) -> None:
        proxy = self.server.proxy
        proxy.track(self.request)
        try:
            self.request.settimeout(_IDLE_SECONDS)
            head, rest = _read_head(self.request)
            lines = head.decode("latin-1").split("\r\n")
            method, _, tail = lines[0].partition(" ")
            target, _, _ = tail.rpartition(" ")
            headers = [tuple(line.split(":", 1)) for line in lines[1:] if ":" in line]
            offered = next((v.strip() for n, v in headers if n.lower() == "proxy-authorization"), "")
            if not proxy.admits(offered):
                challenge = 'Proxy-Authenticate: Basic realm="sandbox"\r\n'
                self._answer("407 Proxy Authentication Required", challenge)
            elif method == "CONNECT":
                self._tunnel(target, rest)
            else:
                kept = [f"{n}:{v}" for n, v in headers if n.lower() not in _HOP_BY_HOP]
                self._forward(method, target, kept, rest)
        finally:
            proxy.track(self.request, ended=True)

    def _tunnel(self, target: str, rest: bytes) -> None:
        host, _, port = target.rpartition(":")
        try:
            upstream = self.server.proxy.connect(host.strip("[]"), int(port), tunnel=True)
        except (OSError, ValueError):
            self._answer("502 Bad Gateway")
            return
        with upstream:
            self.request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            upstream.sendall(rest)
            self._relay(upstream)

    def _forward(self, method: str, target: str, headers: list[str], rest: bytes) -> None:
        parts = urlsplit(target)
        if parts.scheme != "http" or not parts.hostname:
            self._answer("400 Bad Request")
            return
        try:
            upstream = self.server.proxy.connect(parts.hostname, parts.port or 80, tunnel=False)
        except OSError:
            self._answer("502 Bad Gateway")
            return
        with upstream:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            head = "\r\n".join([f"{method} {path} HTTP/1.1", *headers, "Connection: close"])
            upstream.sendall(head.encode("latin-1") + b"\r\n\r\n" + rest)
            self._relay(upstream, one_answer=True)

    def _relay(self, upstream: socket.socket, *, one_answer: bool = False) -> None:
        """Copy bytes in both directions until the upstream or the client ends.

        With ``one_answer`` the response announces that the connection closes after it.
        """
        head: bytes | None = b"" if one_answer else None
        proxy = self.server.proxy
        proxy.track(upstream)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self.request, selectors.EVENT_READ, upstream)
                selector.register(upstream, selectors.EVENT_READ, self.request)
                while ready := selector.select(_IDLE_SECONDS):
                    for key, _ in ready:
                        source, sink = cast("socket.socket", key.fileobj), key.data
                        data = source.recv(_LARGEST_HEAD)
                        if not data:
                            return
                        if source is upstream and head is not None:
                            head += data
                            if b"\r\n\r\n" not in head:
                                continue
                            data, head = _last_on_its_connection(head), None
                        sink.sendall(data)
        finally:
            proxy.track(upstream, ended=True)

    def _answer(self, status: str, header: str = "") -> None:
        reply = f"HTTP/1.1 {status}\r\n{header}Content-Length: 0\r\nConnection: close\r\n\r\n"
        self.request.sendall(reply.encode("ascii"))


def _read_head(sock: socket.socket) -> tuple[bytes, bytes]:
    """Return the head of a request and the bytes after it. Raises ``OSError`` if the head is incomplete."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = sock.recv(_LARGEST_HEAD)
        if not part or len(data) > _LARGEST_HEAD:
            raise OSError("no complete request head")
        data += part
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _last_on_its_connection(answer: bytes) -> bytes:
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([*lines, b"Connection: close"]) + b"\r\n\r\n" + body


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # closed already
