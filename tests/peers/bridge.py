"""A bridge between a client and a service without faults: it passes requests, and holds them on demand."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit


class Bridge:
    """Carries bytes both ways; requests begin with their head in one piece, as those of boto3 do."""

    def __init__(self, upstream: str) -> None:
        target = urlsplit(upstream)
        self._upstream = (str(target.hostname), int(target.port or 80))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.passed: list[tuple[str, str]] = []
        """Method and path of each request that went over, in their order."""
        self.held = 0
        """How many were held."""
        self._limit: tuple[str, int] | None = None
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def hold(self, method: str, *, after: int) -> None:
        """Let so many more requests with that method pass, and hold those that come then for ever."""
        with self._lock:
            self._limit = (method, after)

    def release(self) -> None:
        """Hold no more; those that were held stay held."""
        with self._lock:
            self._limit = None

    def close(self) -> None:
        """Cut every connection."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()  # from here on there are no more connections
        self._listener.close()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._upstream)
            except OSError:
                near.close()
                continue
            self._sockets += [near, far]
            for way in ((near, far, True), (far, near, False)):
                thread = threading.Thread(target=self._carry, args=way, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _renamed(self, data: bytes) -> bytes:
        """Return a request with the host name of its target, which some servers require (the local Prefect server)."""
        host, port = self._upstream
        return data.replace(f"Host: {urlsplit(self.url).netloc}".encode(), f"Host: {host}:{port}".encode(), 1)

    def _carry(self, source: socket.socket, sink: socket.socket, requests: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                line = data.partition(b"\r\n")[0].split(b" ")
                if not requests:
                    goes = self.returns(source)
                elif len(line) == 3 and line[2].startswith(b"HTTP/"):
                    goes = self.passes(line[0].decode(), line[1].decode().partition("?")[0], sink)
                else:
                    goes = True  # the body of a request that passed
                if not goes:
                    return  # the client is left waiting
                sink.sendall(self._renamed(data) if requests else data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def passes(self, method: str, path: str, upstream: socket.socket) -> bool:
        """Return whether a request is passed on."""
        with self._lock:
            if self._limit is not None and self._limit[0] == method:
                if not self._limit[1]:
                    self.held += 1
                    return False
                self._limit = (method, self._limit[1] - 1)
            self.passed.append((method, path))
            return True

    def returns(self, upstream: socket.socket) -> bool:
        """Return whether the answer is passed back."""
        return True


@contextmanager
def bridge(upstream: str) -> Iterator[Bridge]:
    """Yield a bridge to ``http://host:port``, cut at the end."""
    between = Bridge(upstream)
    try:
        yield between
    finally:
        between.close()
