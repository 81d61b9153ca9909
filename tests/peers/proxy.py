"""A forward HTTP proxy: absolute URLs, CONNECT, Basic authentication, counters.

It resolves the made-up host names in ``hosts`` itself: a request to one of them proves that the client used the proxy.
Plain HTTP gets one request a connection; a tunnel lasts until either side ends it.
"""

from __future__ import annotations

import base64
import contextlib
import re
import socket
import socketserver
import threading
from collections.abc import Mapping
from typing import Self
from urllib.parse import urlsplit

_HOP_BY_HOP = {"connection", "proxy-connection", "proxy-authorization", "keep-alive", "te", "upgrade", "trailer"}


class ForwardProxy(socketserver.ThreadingTCPServer):
    """``credentials`` (user, password) are required if given; ``refused`` counts requests without them.

    ``hosts`` maps made-up names, as ``name`` or ``name:port``, to an address. ``targets`` are the requested hosts.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        *,
        credentials: tuple[str, str] | None = None,
        hosts: Mapping[str, tuple[str, int]] | None = None,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _ProxiedConnection)
        self.credentials = credentials
        self.hosts = dict(hosts or {})
        self.requests = self.tunnels = self.refused = 0
        self.targets: list[str] = []
        self.open: list[socket.socket] = []
        self.port = int(self.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}"
        """Without credentials."""

    def handle_error(self, *_: object) -> None:
        """Ignore a client that disconnects."""

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        for sock in self.open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def admits(self, authorization: str) -> bool:
        wanted = "Basic " + base64.b64encode(":".join(self.credentials or ()).encode()).decode()
        admitted = self.credentials is None or authorization == wanted
        self.refused += not admitted
        return admitted

    def connect(self, target: str) -> socket.socket:
        host, _, port = target.rpartition(":")
        self.targets.append(target)
        address = self.hosts.get(target) or self.hosts.get(host) or (host.strip("[]"), int(port))
        upstream = socket.create_connection(address, timeout=30)
        self.open.append(upstream)
        return upstream


class _ProxiedConnection(socketserver.StreamRequestHandler):
    server: ForwardProxy

    def handle(self) -> None:
        self.server.open.append(self.connection)
        method, target, _ = self.rfile.readline().decode("latin-1").split(" ", 2)
        headers: dict[str, str] = {}
        while line := self.rfile.readline().decode("latin-1").strip():
            name, _, value = line.partition(":")
            headers[name] = value.strip()
        by_name = {name.lower(): value for name, value in headers.items()}
        if not self.server.admits(by_name.get("proxy-authorization", "")):
            self._refuse('407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm="x"')
            return
        parts = urlsplit(target)
        try:
            upstream = self.server.connect(target if method == "CONNECT" else f"{parts.hostname}:{parts.port or 80}")
        except (OSError, ValueError):
            self._refuse("502 Bad Gateway")
            return
        with upstream, upstream.makefile("rb") as answer:
            if method == "CONNECT":
                self.server.tunnels += 1
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                threading.Thread(target=self._carry_up, args=(upstream,), daemon=True).start()
                while data := upstream.recv(1 << 16):
                    self.wfile.write(data)
                return
            self.server.requests += 1
            kept = [f"{name}: {value}" for name, value in headers.items() if name.lower() not in _HOP_BY_HOP]
            path = target.partition(parts.netloc)[2] or "/"
            upstream.sendall(
                "\r\n".join([f"{method} {path} HTTP/1.1", *kept, "Connection: close", "", ""]).encode("latin-1")
            )
            upstream.sendall(self.rfile.read(int(by_name.get("content-length", 0))))
            head = b"".join(iter(answer.readline, b"\r\n"))
            length = int((re.search(rb"(?i)\r\ncontent-length: *(\d+)", head) or [b"", b"0"])[1])
            body = b"" if method == "HEAD" else answer.read(length)
            self.wfile.write(head + b"Connection: close\r\n\r\n" + body)

    def _carry_up(self, upstream: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := self.rfile.read1():  # type: ignore[attr-defined]
                upstream.sendall(data)
            upstream.shutdown(socket.SHUT_WR)

    def _refuse(self, status: str) -> None:
        self.wfile.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
