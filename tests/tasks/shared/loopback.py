"""A scripted HTTP server on a real loopback socket: what it is told to answer, and what it was asked."""

from __future__ import annotations

import atexit
import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def authorization(self) -> str | None:
        return self.headers.get("authorization")


@dataclass(frozen=True)
class Reply:
    """An answer, well-formed unless told otherwise."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None
    """``Content-Length`` to claim; the real one by default."""

    def render(self, method: str) -> bytes:
        head = [f"HTTP/1.1 {self.status} Whatever"]
        head += [f"{name}: {value}" for name, value in self.headers.items()]
        head.append(f"Content-Length: {len(self.body) if self.length is None else self.length}")
        body = b"" if method == "HEAD" else self.body
        return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


@dataclass(frozen=True)
class Raw:
    """Bytes as they are, and then: ``close``, ``reset`` or ``stall``."""

    data: bytes = b""
    then: str = "close"


Answerer = Callable[[Seen], "Reply | Raw"]


class Loopback:
    """The server; ``answer`` is a function, or a list of answers of which the last one repeats."""

    def __init__(self, answer: Answerer | list[Reply | Raw], *, tls: ssl.SSLContext | None = None) -> None:
        self._answers = answer
        self._tls = tls
        self._given = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self.seen: list[Seen] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def is_quiet(self) -> bool:
        """Whether no connection is left of which something could still be read."""
        return not any(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        self._closing.set()
        # shutdown, not close alone, wakes the thread in accept()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()
        with self._lock:
            for sock in self._sockets:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with self._lock:
                self._sockets.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            with sock.makefile("rb") as reader:
                while (seen := _read(reader)) is not None:
                    with self._lock:
                        self.seen.append(seen)
                        answer = self._next(seen)
                    if not self._give(sock, seen, answer):
                        return
        except (OSError, ValueError):
            return
        finally:
            sock.close()

    def _next(self, seen: Seen) -> Reply | Raw:
        if callable(self._answers):
            return self._answers(seen)
        answer = self._answers[min(self._given, len(self._answers) - 1)]
        self._given += 1
        return answer

    def _give(self, sock: socket.socket, seen: Seen, answer: Reply | Raw) -> bool:
        if isinstance(answer, Reply):
            sock.sendall(answer.render(seen.method))
            return True
        sock.sendall(answer.data)
        if answer.then == "stall":
            self._closing.wait(30)
        elif answer.then == "reset":
            time.sleep(0.01)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False


def _read(reader: object) -> Seen | None:
    line = reader.readline()  # type: ignore[attr-defined]
    if not line:
        return None
    method, target, _ = line.decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while (line := reader.readline().rstrip(b"\r\n")) != b"":  # type: ignore[attr-defined]
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    body = reader.read(int(headers.get("content-length", "0")))  # type: ignore[attr-defined]
    return Seen(method, target, headers, body)


@contextlib.contextmanager
def loopback(answer: Answerer | list[Reply | Raw], *, tls: ssl.SSLContext | None = None) -> Iterator[Loopback]:
    server = Loopback(answer, tls=tls)
    try:
        yield server
    finally:
        server.close()


_NOBODY = socket.socket()
_NOBODY.bind(("127.0.0.1", 0))
atexit.register(_NOBODY.close)


def closed_port() -> int:
    """A port of loopback where nobody listens: it is taken, so that no other process can begin to."""
    port: int = _NOBODY.getsockname()[1]
    return port
