"""The connections under the HTTP client: sockets that a stop can interrupt, pooled by httpcore.

httpx's own transport blocks in ``recv`` for as long as the request's timeout, half an hour for a
flattening request, while a run has to end within ten seconds of a signal (``4-product.md`` §4). These
sockets wait in short slices and look at the ``Stop`` in between, which costs nothing while bytes arrive.
httpcore's own stream cannot be called in slices: it does not tell how much of a body it had sent when it timed out.
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
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, LifoQueue
from typing import Any, TypeVar

import httpcore
import httpx

from tasks.shared.errors import Stopped
from tasks.shared.http.proxies import Proxy
from tasks.shared.stop import Stop

T = TypeVar("T")
Errors = tuple[type[httpcore.TimeoutException], type[httpcore.NetworkError]]
"""What a wait that was too long becomes, and what an error of the socket does."""

_SLICE = 0.25  # seconds between two looks at the stop
# Seconds an idle connection is used again. Many servers close theirs after 5, and a request that meets the
# closing half-way is lost, which hurts when it must not be repeated.
_KEEP_ALIVE = 4.0
_SMALL, _LARGE = 128 * 1024, 256 * 1024
_MANY = 64 * 1024  # what httpcore asks for, and as much as tells that more follows
_HELD = 16 * 1024  # bytes that wait for what is written next

_CONNECT: Errors = (httpcore.ConnectTimeout, httpcore.ConnectError)
_READ: Errors = (httpcore.ReadTimeout, httpcore.ReadError)
_WRITE: Errors = (httpcore.WriteTimeout, httpcore.WriteError)
_POOL: Errors = (httpcore.PoolTimeout, httpcore.ConnectError)


class Patience:
    """How long a request that is under way may go on after somebody asked the run to stop.

    ``grace`` seconds let an answer that is about to come be used, so that what the service did is also
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
        """The moment that is so many seconds from now."""
        return self._clock() + seconds

    def until(self, end: float | None) -> None:
        """Whatever this thread waits for from now on is late at that moment, all of it together."""
        self._thread.end = end

    def left(self, timeout: float | None, late: type[httpcore.TimeoutException]) -> float | None:
        """Seconds that this thread may wait: ``timeout``, or what is left of its limit. Raises ``late`` for none."""
        end: float | None = getattr(self._thread, "end", None)
        if end is None:
            return timeout
        rest = end - self._clock()
        if rest <= 0:
            raise late
        return rest if timeout is None else min(timeout, rest)

    def repeat(self, act: Callable[[], T], timeout: float | None, errors: Errors) -> T:
        """Return the result of ``act``, which raises ``TimeoutError`` after each ``_SLICE`` until it has one.

        Raises the first of ``errors`` after ``timeout``, the second for an error of the socket.
        """
        late, broken = errors
        left = self.left(timeout, late)
        while True:
            try:
                return act()
            except (OSError, ValueError) as error:  # some names cannot be that of a certificate
                if not isinstance(error, TimeoutError) or error.errno is not None:  # ETIMEDOUT is the network's
                    raise broken from error
            self.check()
            if left is not None:
                left -= _SLICE
                if left <= 0:
                    raise late


class _Stream(httpcore.NetworkStream):
    """One connected socket, plain or TLS."""

    def __init__(self, sock: socket.socket, patience: Patience) -> None:
        sock.settimeout(_SLICE)  # once: for each call it would cost a call of the kernel more
        self._sock: Socket = sock
        self._patience = patience
        self._want = _SMALL
        self._held = b""

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Bytes as they come. More than ``max_bytes`` while a large body streams: httpcore does not mind."""
        if self._held:
            # A server that takes no more of a request may have answered it: httpcore wants to know that, too.
            with contextlib.suppress(httpcore.WriteError):
                self._flush(timeout)
        want = max(max_bytes, self._want) if max_bytes >= _MANY else max_bytes
        data = self._patience.repeat(functools.partial(self._sock.recv, want), timeout, _READ)
        self._want = _LARGE if len(data) >= _MANY else _SMALL
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all of ``buffer``, a little one together with what follows it; the timeout is for the progress of
        every part of it.

        httpcore writes the head of a request by itself: sent alone, it wakes a server that cannot do anything yet.
        """
        self._held = self._held + buffer if self._held else bytes(buffer)
        if len(self._held) > _HELD:
            self._flush(timeout)

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        """The same connection under TLS, after the handshake."""
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
        """What httpcore asks: whether an idle connection has something to read, that is, was closed."""
        return _ready(self._sock, select.POLLIN, 0) if info == "is_readable" else None

    def _flush(self, timeout: float | None) -> None:
        view, self._held = memoryview(self._held), b""
        while view:
            view = view[self._patience.repeat(functools.partial(self._sock.send, view), timeout, _WRITE) :]


class _TlsInTls:
    """A socket with TLS inside another one's, which ``ssl`` does not have: the way through a proxy that is itself
    reached by ``https``.

    Like any socket of ours it raises ``TimeoutError``, and can be called again after it: no byte is lost.
    """

    def __init__(self, outer: Socket, ssl_context: ssl.SSLContext, server_hostname: str | None) -> None:
        self._outer = outer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = ssl_context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        self._unsent = memoryview(b"")

    def do_handshake(self) -> None:
        """Agree on keys. What is sent last goes out with what is sent or read next."""
        self._act(self._tls.do_handshake)

    def recv(self, size: int) -> bytes:
        """Bytes as they come."""
        return self._act(lambda: self._tls.read(size))

    def send(self, data: memoryview) -> int:
        """Send all of ``data``, the end of it with what is sent or read next."""
        return self._act(lambda: self._tls.write(data))

    def close(self) -> None:
        """Close the connection."""
        self._outer.close()

    def fileno(self) -> int:
        """What can be waited for."""
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


class _Backend(httpcore.NetworkBackend):
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
        """A connection to the first address of ``host`` that answers."""
        problem: OSError = OSError(errno.EADDRNOTAVAIL, "the name has no address")
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError from error
        for family, kind, protocol, _, address in addresses:
            sock = socket.socket(family, kind, protocol)
            try:
                self._connect(sock, address, timeout)
                return _Stream(sock, self._patience)
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
            self._patience.repeat(lambda: _in_time(_ready(sock, select.POLLOUT, _SLICE)), timeout, _CONNECT)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, errno.errorcode.get(code, "connect"))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _ready(sock: Socket, event: int, seconds: float) -> bool:
    if sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock, event)
    return bool(poll.poll(seconds * 1000))


def _in_time(done: bool) -> None:
    if not done:
        raise TimeoutError


class _Direct:
    """One connection without a proxy, opened again when it has to be.

    What ``httpcore.ConnectionPool`` does for a connection that nobody shares, at a quarter of the cost of a request.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._connection: httpcore.HTTPConnection | None = None

    def handle_request(self, request: httpcore.Request) -> httpcore.Response:
        """One exchange; the body of the response is not read yet."""
        origin = request.url.origin
        known = self._connection
        if known is None or not (known.is_available() and known.can_handle_request(origin)) or known.has_expired():
            self.close()
            known = self._connection = httpcore.HTTPConnection(origin, **self._options)
        return known.handle_request(request)

    def close(self) -> None:
        """Close it."""
        known, self._connection = self._connection, None
        if known is not None:
            known.close()


Connection = _Direct | httpcore.HTTPProxy


class _Parts(httpx.SyncByteStream):
    """A body on its way in; closing it, which is done once or more, gives the connection back.

    All of it is late at the moment ``end``, or each part of it after ``seconds``: what frames a body (the size of a
    chunk, a trailer) is no part of it, however many bytes it has.
    """

    def __init__(
        self, parts: Any, patience: Patience, seconds: float, end: float | None, give_back: Callable[[], None]
    ) -> None:
        self._parts = parts
        self._patience = patience
        self._seconds = seconds
        self._end = end
        self._give_back: Callable[[], None] | None = give_back

    def __iter__(self) -> Iterator[bytes]:
        parts = iter(self._parts)
        while True:
            self._patience.until(self._end or self._patience.after(self._seconds))
            try:
                part = next(parts, None)
            finally:
                self._patience.until(None)
            if part is None:
                return
            yield part

    def close(self) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            try:
                self._parts.close()
            finally:
                give_back()


class PoolTransport(httpx.BaseTransport):
    """An httpx transport over at most ``max_connections`` of these connections, direct or through one proxy.

    A connection belongs to one thread from the beginning of a request to the end of its answer. In a pool
    that threads share, httpcore 1.0 looks at the idle connections of others while they begin a request,
    can take the first bytes of their answer for a disconnect, and closes the connection under them (seen
    as one broken request in some thousands); so there is no such pool here. Whoever comes when all are in
    use waits, up to the request's timeout.

    Without an ``ssl_context`` it is for plain HTTP. Raises httpcore's exceptions as they are, and ``Stopped``.
    """

    def __init__(
        self,
        ssl_context: ssl.SSLContext | None,
        patience: Patience,
        *,
        max_connections: int,
        proxy: Proxy | None = None,
    ) -> None:
        self._ssl_context = ssl_context
        self._patience = patience
        self._proxy = proxy
        self._closed = False
        # The last one used is the first one used again; ``None`` is one that is not made yet.
        self._idle: LifoQueue[Connection | None] = LifoQueue()
        for _ in range(max_connections):
            self._idle.put(None)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """One exchange; the body of the response is not read yet.

        The ``read`` timeout is also that of all of it: of connecting, of the request and of the head of its answer, by
        however many bytes it comes and however many informational answers come before it (document 3 §1). With the
        extension ``whole`` it is that of the body too, else every part of the body has as long.

        Not held to it is the name service of this machine.
        """
        url = request.url
        timeouts = request.extensions["timeout"]
        connection = self._patience.repeat(self._next_idle, timeouts["pool"], _POOL) or self._connection()
        seconds: float = timeouts["read"]
        end = self._patience.after(seconds)
        self._patience.until(end)
        try:
            answer = connection.handle_request(
                httpcore.Request(
                    request.method,
                    httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        except BaseException:
            self._give_back(connection)
            raise
        finally:
            self._patience.until(None)
        whole = end if request.extensions.get("whole", False) else None
        parts = _Parts(answer.stream, self._patience, seconds, whole, lambda: self._give_back(connection))
        return httpx.Response(answer.status, headers=answer.headers, stream=parts, extensions=answer.extensions)

    def close(self) -> None:
        """Close every idle connection; one that is in use closes when it is given back."""
        self._closed = True
        idle = []
        with contextlib.suppress(Empty):
            while True:
                idle.append(self._idle.get_nowait())
        for connection in idle:
            if connection is not None:
                connection.close()
            self._idle.put(None)

    def _next_idle(self) -> Connection | None:
        try:
            return self._idle.get(timeout=_SLICE)
        except Empty:
            raise TimeoutError from None

    def _give_back(self, connection: Connection) -> None:
        self._idle.put(connection)
        if self._closed:
            self.close()

    def _connection(self) -> Connection:
        backend = _Backend(self._patience)
        proxy = self._proxy
        if proxy is None:
            return _Direct(ssl_context=self._ssl_context, keepalive_expiry=_KEEP_ALIVE, network_backend=backend)
        auth = proxy.credentials
        return httpcore.HTTPProxy(
            proxy.url,
            proxy_auth=auth and (auth[0].encode(), auth[1].encode()),
            ssl_context=self._ssl_context,
            proxy_ssl_context=self._ssl_context if proxy.scheme == "https" else None,
            max_connections=1,
            keepalive_expiry=_KEEP_ALIVE,
            network_backend=backend,
        )
