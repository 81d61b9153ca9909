"""The connections under the HTTP client: httpcore's, over our own sockets, one thread each.

``tls.ca_cert_path`` is added to the system's trust store, not to a bundled list, and may hold server certificates too
(documents 1 and 3 §1). Every outgoing client, S3 included, has a context from here.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from queue import Empty, LifoQueue
from typing import Any

import httpcore
import httpx

from config import TlsConfig
from tasks.shared.errors import InputError
from tasks.shared.http_old.proxies import Proxies, Proxy
from tasks.shared.http_old.sockets import SLICE, Errors, Patience, SocketBackend

log = logging.getLogger("sluice.tls")

_warned = threading.Event()


def ssl_context(tls: TlsConfig) -> ssl.SSLContext:
    """Return the context for every outgoing TLS connection.

    Raises ``InputError`` (``tls-ca-bundle``) for a bundle that cannot be used. With ``insecure_skip_verify`` a warning
    is logged, once in a process; the bundle is read all the same, so that a broken one is found before verification is
    enabled.
    """
    context = ssl.create_default_context()
    # A server certificate in the bundle is trusted without the CA that signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # Python 3.13 turns strict RFC 5280 checks on; hospital CAs often lack the extensions it asks for, and a
    # bundle that works with one Python must work with the next.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if tls.ca_cert_path is not None:
        try:
            context.load_verify_locations(cafile=tls.ca_cert_path)
        except (OSError, ValueError):  # ssl.SSLError is an OSError
            raise InputError(
                "tls-ca-bundle", "the certificates of the bundle cannot be read",
                context=f"tls.ca_cert_path {tls.ca_cert_path}", hint="name a PEM file of certificates",
            ) from None  # fmt: skip
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if not _warned.is_set():
            _warned.set()
            log.warning(
                "TLS VERIFICATION IS OFF (tls.insecure_skip_verify): anybody on the network can read and "
                "change the data and the credentials of this run. For development and testing only."
            )
    return context


# Seconds an idle connection is used again. Many servers close theirs after 5, and a request that meets the
# closing half-way is lost, which hurts when it must not be repeated.
_KEEP_ALIVE = 4.0
_MOST_ROUTES = 64  # of origins that are remembered: downloads may name any number
_POOL: Errors = (httpcore.PoolTimeout, httpcore.ConnectError)


class _Direct:
    """One connection without a proxy, opened again when it has to be.

    Does the same as ``httpcore.ConnectionPool`` for an unshared connection, at a quarter of the cost of a request.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._connection: httpcore.HTTPConnection | None = None

    def handle_request(self, request: httpcore.Request) -> httpcore.Response:
        """Send one request; the body of the response is not read yet."""
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
Route = tuple[Proxy | None, httpx.BaseTransport]


class _Parts(httpx.SyncByteStream):
    """A body on its way in; closing it, which is done once or more, gives the connection back.

    All of it is late at the moment ``end``, or each part of it after ``seconds``: the framing of a body (the size of
    a chunk, a trailer) is not a part, however many bytes it has.
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
    as one broken request in some thousands); so there is no such pool here. If all connections are in use,
    a request waits, up to its timeout.

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
        # The last one used is the first one used again; ``None`` is not made yet.
        self._idle: LifoQueue[Connection | None] = LifoQueue()
        for _ in range(max_connections):
            self._idle.put(None)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request; the body of the response is not read yet.

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
        """Close every idle connection; one in use closes when it is returned."""
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
            return self._idle.get(timeout=SLICE)
        except Empty:
            raise TimeoutError from None

    def _give_back(self, connection: Connection) -> None:
        self._idle.put(connection)
        if self._closed:
            self.close()

    def _connection(self) -> Connection:
        backend = SocketBackend(self._patience)
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


class Connections:
    """The transports of one client, direct ones and those through the proxies of the environment. Thread-safe.

    ``given`` is a test's transport in place of all of them. Raises ``InputError`` for a certificate bundle or a proxy
    variable that cannot be used.
    """

    def __init__(
        self,
        tls: TlsConfig,
        patience: Patience,
        *,
        max_connections: int,
        environ: Mapping[str, str] | None = None,
        given: httpx.BaseTransport | None = None,
    ) -> None:
        self._tls = tls
        self._patience = patience
        self._max_connections = max_connections
        self._given = given
        self._proxies = Proxies(environ)
        # The system's trust store takes 30 ms to read: not for plain HTTP, unless there is something to find wrong.
        eager = tls.ca_cert_path is not None or tls.insecure_skip_verify
        self._ssl_context = ssl_context(tls) if eager else None
        self._transports: dict[tuple[Proxy | None, bool], httpx.BaseTransport] = {}
        self._routes: dict[tuple[str, str, int], Route] = {}
        self._lock = threading.Lock()

    def route(self, origin: tuple[str, str, int]) -> Route:
        """Return the transport for an origin (scheme, host, port), and its proxy."""
        return self._routes.get(origin) or self._new_route(origin)

    def _new_route(self, origin: tuple[str, str, int]) -> Route:
        if self._given is not None:
            return None, self._given
        proxy = self._proxies.select(*origin)
        secure = origin[0] == "https" or (proxy is not None and proxy.scheme == "https")
        with self._lock:
            transport = self._transports.get((proxy, secure))
            if transport is None:
                if secure and self._ssl_context is None:
                    self._ssl_context = ssl_context(self._tls)
                transport = self._transports[proxy, secure] = PoolTransport(
                    self._ssl_context, self._patience, max_connections=self._max_connections, proxy=proxy
                )
            if len(self._routes) < _MOST_ROUTES:
                self._routes[origin] = proxy, transport
        return proxy, transport

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            transports = [*self._transports.values()]
            self._transports.clear()
            self._routes.clear()
        for transport in transports:
            transport.close()
