"""The one scripted HTTP server of the tests, on a real loopback socket: scripted answers, recorded requests.

``loopback`` answers what a function or a list says. A ``ScriptedServer`` answers as a service does (``services.py``),
and a script may say something else.
"""

from __future__ import annotations

import atexit
import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self


@dataclass(frozen=True)
class SeenRequest:
    """One request as it arrived; names of headers in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes = field(repr=False)

    @property
    def authorization(self) -> str | None:
        return self.headers.get("authorization")


@dataclass(frozen=True)
class Reply:
    """An answer, well-formed and whole by default."""

    status: int = 200
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None
    """``Content-Length`` to claim; the real one by default."""
    cut: int | None = None
    """Send only so many bytes of the body, under the Content-Length of all of it."""
    reset: bool = False
    """No answer at all: the connection is reset."""
    stall: bool = False
    """No answer while the server lives."""
    seconds: float = 0.0
    """How long a service takes for it."""

    def render(self, method: str) -> bytes:
        body = self.body or b""
        head = [f"HTTP/1.1 {self.status} Whatever"]
        head += [f"{name}: {value}" for name, value in self.headers.items()]
        head.append(f"Content-Length: {len(body) if self.length is None else self.length}")
        return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + (b"" if method == "HEAD" else body[: self.cut])


@dataclass(frozen=True)
class Raw:
    """Bytes as they are, or made while they are sent, and then: ``close``, ``reset`` or ``stall``."""

    data: bytes | Iterable[bytes] = b""
    then: str = "close"


Answerer = Callable[[SeenRequest], "Reply | Raw"]


class Loopback:
    """The server; ``answer`` is a function, called for one request at a time, or answers; the last one repeats."""

    def __init__(
        self, answer: Answerer | Sequence[Reply | Raw], *, tls: ssl.SSLContext | None = None, port: int = 0
    ) -> None:
        self._answers = answer
        self._tls = tls
        self._given = 0
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.seen: list[SeenRequest] = []
        self.connections = 0
        self.after: Callable[[SeenRequest], object] = lambda _: None
        """Called when the answer to a request is on its way."""
        self._listener = socket.create_server(("127.0.0.1", port), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def connected(self) -> int:
        """Connections of which something could still be read."""
        return sum(thread.is_alive() for thread in self._threads)

    def handle(self, seen: SeenRequest) -> Reply | Raw:
        with self.lock:
            self.seen.append(seen)
            if callable(self._answers):
                return self._answers(seen)
            self._given += 1
            return self._answers[min(self._given, len(self._answers)) - 1]

    def close(self) -> None:
        self.closing.set()
        # shutdown, not close alone, wakes the thread in accept()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()
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
            self._sockets.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            with sock.makefile("rb") as reader:
                while (head := _head(reader)) is not None:
                    length = int(head.headers.get("content-length", "0"))
                    seen = replace(head, body=reader.read(length))
                    if len(seen.body) < length:
                        return
                    goes_on = self._send_answer(sock, seen, self.handle(seen))
                    self.after(seen)
                    if not goes_on:
                        return
        except (OSError, ValueError):  # the client went away, or we reset the connection
            return
        finally:
            sock.close()

    def _send_answer(self, sock: socket.socket, seen: SeenRequest, answer: Reply | Raw) -> bool:
        """Send it; whether the connection can be used again."""
        if isinstance(answer, Raw):
            for piece in [answer.data] if isinstance(answer.data, bytes) else answer.data:
                sock.sendall(piece)
            if answer.then == "stall":
                self.closing.wait(30)
            elif answer.then == "reset":
                time.sleep(0.01)
                _reset(sock)
            return False
        if answer.reset:
            _reset(sock)
            return False
        if answer.stall:
            self.closing.wait(30)
            return False
        sock.sendall(answer.render(seen.method))
        return answer.cut is None


def _reset(sock: socket.socket) -> None:
    """Make the following close send a reset only."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _head(reader: Any) -> SeenRequest | None:
    line = reader.readline()
    if not line:
        return None
    method, target, _ = line.decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while (line := reader.readline().rstrip(b"\r\n")) != b"":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    return SeenRequest(method, target, headers, b"")


loopback = Loopback
"""``with loopback(…) as server``"""


class ScriptedServer(Loopback):
    """A service that answers as ``answer`` says, many requests at once; ``script`` may say something else."""

    def __init__(self, answer: Answerer, script: Callable[[SeenRequest], Reply | Raw | None] | None = None) -> None:
        self.answer = answer
        self.script = script
        super().__init__([])

    def handle(self, seen: SeenRequest) -> Reply | Raw:
        with self.lock:
            self.seen.append(seen)
        said = self.script(seen) if self.script is not None else None
        return said or self.answer(seen)


_NOBODY = socket.socket()
_NOBODY.bind(("127.0.0.1", 0))
atexit.register(_NOBODY.close)


def closed_port() -> int:
    """Yield a port of loopback where no process listens: it is bound, so that none can begin to."""
    port: int = _NOBODY.getsockname()[1]
    return port
