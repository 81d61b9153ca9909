"""The sockets under the HTTP client, which a stop can interrupt.

httpx's own transport blocks in ``recv`` for as long as the request's timeout, half an hour for a
flattening request, while a run has to end within ten seconds of a signal (``4-product.md`` §4). These
sockets wait in short slices and check the ``Stop`` in between, which costs nothing while bytes arrive.
httpcore's own stream cannot be called in slices: after a timeout, the number of bytes it sent is unknown.
These sockets also read up to 256 KiB at once while a large body streams, which is a third faster on plain HTTP
(``performance.md``).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import httpcore

from tasks.shared.errors import Stopped
from tasks.shared.stop import Stop

T = TypeVar("T")
Errors = tuple[type[httpcore.TimeoutException], type[httpcore.NetworkError]]
"""The error raised for a timeout, and the one for an error of the socket."""

SLICE = 0.25
"""Seconds between two checks of the stop."""
_SMALL, _LARGE = 128 * 1024, 256 * 1024
_MANY = 64 * 1024  # the size httpcore requests; a read of this size means that more follows
_HELD = 16 * 1024  # bytes that wait for the next write
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 30), (socket.TCP_KEEPCNT, 3))
"""Seconds, and probes: a host that died during a request is noticed after two minutes."""

_CONNECT: Errors = (httpcore.ConnectTimeout, httpcore.ConnectError)
_READ: Errors = (httpcore.ReadTimeout, httpcore.ReadError)
_WRITE: Errors = (httpcore.WriteTimeout, httpcore.WriteError)


class Patience:
    """Time that a request under way has after the run was asked to stop.

    ``grace`` seconds allow an imminent answer to arrive, so that the work of the service is also
    recorded (the handle of an extraction, the lines of a ledger). One instance serves all connections of
    a client.
    """

    def __init__(self, stop: Stop | None, *, grace: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._stop = stop
        self._grace = grace
        self._clock = clock
        self._seen: float | None = None
        self._thread = threading.local()

    def check(self) -> None:
        """Raise ``Stopped`` when the grace is over."""
        if self._stop is None or not self._stop.requested:
            return
        if self._seen is None:
            self._seen = self._clock()
        if self._clock() - self._seen >= self._grace:
            raise Stopped(self._stop.reason or "stopped")

    def after(self, seconds: float) -> float:
        """Return the moment ``seconds`` from now."""
        return self._clock() + seconds

    def until(self, end: float | None) -> None:
        """Limit all further waiting of this thread to this moment."""
        self._thread.end = end

    def remaining_seconds(self, timeout: float | None, late: type[httpcore.TimeoutException]) -> float | None:
        """Return seconds that this thread may wait: ``timeout``, or the rest of its limit. Raises ``late`` at 0."""
        end: float | None = getattr(self._thread, "end", None)
        if end is None:
            return timeout
        rest = end - self._clock()
        if rest <= 0:
            raise late
        return rest if timeout is None else min(timeout, rest)

    def repeat(self, act: Callable[[], T], timeout: float | None, errors: Errors) -> T:
        """Return the result of ``act``, which raises ``TimeoutError`` after each ``SLICE`` until it has one.

        Raises the first of ``errors`` after ``timeout``, the second for an error of the socket.
        """
        late, broken = errors
        left = self.remaining_seconds(timeout, late)
        while True:
            try:
                return act()
            except (OSError, ValueError) as error:  # some names cannot be that of a certificate
                if not isinstance(error, TimeoutError) or error.errno is not None:  # ETIMEDOUT is the network's
                    raise broken from error
            self.check()
            if left is not None:
                left -= SLICE
                if left <= 0:
                    raise late


class SocketStream(httpcore.NetworkStream):
    """One connected socket, plain or TLS."""

    def __init__(self, sock: socket.socket, patience: Patience) -> None:
        sock.settimeout(SLICE)  # once: for each call it would cost a call of the kernel more
        self._sock: Socket = sock
        self._patience = patience
        self._want = _SMALL
        self._held = b""

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return bytes as received. More than ``max_bytes`` while a large body streams: httpcore does not mind."""
        if self._held:
            # A server that stops reading a request may have answered it; httpcore must still read that answer.
            with contextlib.suppress(httpcore.WriteError):
                self._flush(timeout)
        want = max(max_bytes, self._want) if max_bytes >= _MANY else max_bytes
        data = self._patience.repeat(functools.partial(self._sock.recv, want), timeout, _READ)
        self._want = _LARGE if len(data) >= _MANY else _SMALL
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all of ``buffer``, a small one with the next one; the timeout is for the progress of every part.

        httpcore writes the head of a request first: sent alone, it wakes a server that cannot do anything yet.
        """
        self._held = self._held + buffer if self._held else bytes(buffer)
        if len(self._held) > _HELD:
            self._flush(timeout)

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        """Return the connection under TLS, after the handshake."""
        sock = self._sock

        def wrap() -> ssl.SSLSocket | _TlsInTls:
            if isinstance(sock, ssl.SSLSocket | _TlsInTls):
                return _TlsInTls(sock, ssl_context, server_hostname)
            return ssl_context.wrap_socket(sock, server_hostname=server_hostname, do_handshake_on_connect=False)

        try:
            self._sock = secure = self._patience.repeat(wrap, timeout, _CONNECT)
            self._patience.repeat(secure.do_handshake, timeout, _CONNECT)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def get_extra_info(self, info: str) -> Any:
        """Return the fact that httpcore requests: whether an idle connection has something to read, that is, was
        closed."""
        return _ready(self._sock, select.POLLIN, 0) if info == "is_readable" else None

    def _flush(self, timeout: float | None) -> None:
        view, self._held = memoryview(self._held), b""
        while view:
            view = view[self._patience.repeat(functools.partial(self._sock.send, view), timeout, _WRITE) :]


class _TlsInTls:
    """A socket with TLS inside another one's, which ``ssl`` does not have: the way through a proxy that is itself
    reached by ``https``.

    Like all our sockets it raises ``TimeoutError``, and can be called again after it: no byte is lost.
    """

    def __init__(self, outer: Socket, ssl_context: ssl.SSLContext, server_hostname: str | None) -> None:
        self._outer = outer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = ssl_context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        self._unsent = memoryview(b"")

    def do_handshake(self) -> None:
        """Agree on keys. The last bytes are sent with the next write or read."""
        self._act(self._tls.do_handshake)

    def recv(self, size: int) -> bytes:
        """Return bytes as received."""
        return self._act(lambda: self._tls.read(size))

    def send(self, data: memoryview) -> int:
        """Send all of ``data``, the end of it with the next write or read."""
        return self._act(lambda: self._tls.write(data))

    def close(self) -> None:
        """Close the connection."""
        self._outer.close()

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._outer.fileno()

    def _act(self, act: Callable[[], T]) -> T:
        """Return the result of ``act``, as soon as the other end has sent enough for it."""
        while True:
            self._flush()
            try:
                return act()
            except ssl.SSLWantReadError:
                self._flush()
            if data := self._outer.recv(_MANY):
                self._incoming.write(data)
            else:
                self._incoming.write_eof()

    def _flush(self) -> None:
        self._unsent = self._unsent or memoryview(self._outgoing.read())
        while self._unsent:
            self._unsent = self._unsent[self._outer.send(self._unsent) :]


Socket = socket.socket | _TlsInTls


class SocketBackend(httpcore.NetworkBackend):
    """Makes the connections."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Return a connection to the first address of ``host`` that answers."""
        problem: OSError = OSError(errno.EADDRNOTAVAIL, "the name has no address")
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError from error
        for family, kind, protocol, _, address in addresses:
            sock = socket.socket(family, kind, protocol)
            try:
                self._connect(sock, address, timeout)
                return SocketStream(sock, self._patience)
            except OSError as error:
                sock.close()
                problem = error
            except BaseException:
                sock.close()
                raise
        raise httpcore.ConnectError from problem

    def _connect(self, sock: socket.socket, address: Any, timeout: float | None) -> None:
        sock.setblocking(False)
        code = sock.connect_ex(address)
        if code == errno.EINPROGRESS:
            self._patience.repeat(lambda: _in_time(_ready(sock, select.POLLOUT, SLICE)), timeout, _CONNECT)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, errno.errorcode.get(code, "connect"))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _ready(sock: Socket, event: int, seconds: float) -> bool:
    if sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock, event)
    return bool(poll.poll(seconds * 1000))


def _in_time(done: bool) -> None:
    if not done:
        raise TimeoutError
