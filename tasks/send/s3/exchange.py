"""One HTTP exchange with the store: botocore makes and signs the request, our own connections carry it.

botocore offers every signed request to the handlers of its event ``before-send`` and takes an answer from them instead
of its own session. So S3 has the trust (``tls.py``), the proxies (``proxies.py``), the timeouts and the stop
(``wire.py``) of every other call of the pipeline. On ``response-received`` a refusal becomes an error of ours, before
botocore's own retries and region redirects see it.
"""

from __future__ import annotations

import io
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from threading import Lock
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
from botocore.awsrequest import AWSPreparedRequest, AWSResponse

from config import AuthConfig, TlsConfig
from tasks.send.s3.refusal import Refusal, proxy_authentication
from tasks.shared.blanked import SECRETS
from tasks.shared.errors import ServiceError, SluiceError, Stopped
from tasks.shared.http.answer import Where
from tasks.shared.http.failures import error_without_answer
from tasks.shared.http.proxies import Proxies, Proxy
from tasks.shared.http.tls import ssl_context
from tasks.shared.http.wire import Patience, PoolTransport
from tasks.shared.stop import Stop

_CONNECT_SECONDS: Final = 30.0
_SLICE: Final = 256 * 1024  # bytes of a body between two looks at the deadline
_MOST: Final = 16 * 1024 * 1024  # bytes of an answer: a page of a list has less than one MiB
_GRACE: Final = 2.0
"""Seconds that an answer may still take after a stop; with what follows it must stay below ten."""
_LAST_WORDS: Final = 3.0
"""Seconds for tidying up after a stop."""

_ABORT: Final = "AbortMultipartUpload"
_OPERATIONS: Final = {
    "HeadBucket": "look for the bucket",
    "ListObjectsV2": "look into the bucket",
    "ListMultipartUploads": "list of unfinished uploads",
    "HeadObject": "look for the object",
    "PutObject": "upload",
    "CreateMultipartUpload": "begin of an upload in parts",
    "UploadPart": "upload of a part",
    "CompleteMultipartUpload": "end of an upload in parts",
    _ABORT: "removal of an unfinished upload",
}
_WHERE: Final = "sluice.where"


class Exchange:
    """The connections to one store; thread-safe. ``timeout`` in seconds, for one whole request.

    ``auth`` holds Basic credentials of an upstream proxy (document 1, "Authentication" rule 7): they go to the proxy
    that the environment names, and with every request, for a reverse proxy in front of the store. ``transport``,
    ``environ`` and ``clock`` are seams for tests.

    Raises ``InputError`` for a certificate bundle or a proxy variable that cannot be used.
    """

    def __init__(
        self,
        *,
        tls: TlsConfig,
        auth: AuthConfig,
        timeout: float,
        stop: Stop,
        max_connections: int,
        transport: httpx.BaseTransport | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout = timeout
        self._stop = stop
        self._most = max_connections
        self._given = transport
        self._clock = clock
        self._ssl_context = ssl_context(tls)
        self._proxies = Proxies(environ)
        self._credentials = _basic(auth)
        SECRETS.auth(auth)
        self._patience = Patience(stop, grace=_GRACE)
        self._lock = Lock()
        self._transports: dict[tuple[Proxy | None, bool], httpx.BaseTransport] = {}

    def send(self, request: AWSPreparedRequest, event_name: str, **_: Any) -> AWSResponse:
        """Handler of ``before-send.s3``: the answer to a signed request, whatever its status.

        Raises ``NetworkError``, ``ServiceError`` and ``Stopped``.
        """
        name = event_name.rpartition(".")[2]
        where = Where("send", _OPERATIONS.get(name, name), request.method, request.url)
        request.context[_WHERE] = where
        parts = urlsplit(request.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        proxy = self._proxy(parts.scheme, parts.hostname or "", port)
        # A stop must not keep an unfinished upload from being removed: nobody else would do that in this run.
        tidying = name == _ABORT
        seconds = min(self._timeout, _LAST_WORDS) if tidying else self._timeout
        try:
            if not tidying:
                self._stop.check()
            return self._exchange(request, self._transport(proxy, tidying=tidying), parts.netloc, seconds)
        except (SluiceError, Stopped):
            raise
        except Exception as error:  # noqa: BLE001 - the seam where foreign errors become ours
            raise self._translated(error, where, proxy) from None

    def judge(
        self,
        parsed_response: Mapping[str, Any] | None,
        response_dict: Mapping[str, Any] | None,
        exception: Exception | None,
        context: Mapping[str, Any],
        **_: Any,
    ) -> None:
        """Handler of ``response-received.s3``: raises the error for a refusal, and what ``send`` raised."""
        if exception is not None:
            raise exception
        if parsed_response is None:
            return
        status = parsed_response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        refused = parsed_response.get("Error")
        # CompleteMultipartUpload may be answered 200 with an error in its body, which botocore turns into a 500.
        if status < 300 and not refused:
            return
        headers = (response_dict or {}).get("headers", {})
        refused = refused or {}
        raise Refusal(
            context[_WHERE],
            status,
            str(refused.get("Code", "")),
            refused.get("Region"),
            {name.lower(): value for name, value in headers.items()},
        ).error()

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            transports = [*self._transports.values()]
            self._transports.clear()
        for transport in transports:
            transport.close()

    def _exchange(
        self, signed: AWSPreparedRequest, transport: httpx.BaseTransport, host: str, seconds: float
    ) -> AWSResponse:
        deadline = self._clock() + seconds
        timeouts = {"connect": min(seconds, _CONNECT_SECONDS), "read": seconds, "write": seconds, "pool": None}

        def left() -> float:
            remaining = deadline - self._clock()
            if remaining <= 0:
                raise httpx.ReadTimeout("")
            # The connection looks at these for its next write and read: all of them end at the deadline.
            timeouts["write"] = timeouts["read"] = remaining
            return remaining

        request = httpx.Request(
            signed.method,
            signed.url,
            headers=[(b"Host", host.encode("ascii")), *self._headers(signed)],
            stream=_Body(signed.body, left),
            extensions={"timeout": timeouts},
        )
        response = transport.handle_request(request)
        try:
            content = b"".join(_limited(response, left))
        finally:
            response.close()
        return AWSResponse(signed.url, response.status_code, dict(response.headers), _Answer(content))

    def _headers(self, signed: AWSPreparedRequest) -> Iterator[tuple[bytes, bytes]]:
        for name, value in signed.headers.items():
            # Nothing waits for a 100 here, and some proxies refuse the header.
            if name.lower() not in ("expect", "host", "proxy-authorization"):
                yield name.encode("ascii"), value if isinstance(value, bytes) else str(value).encode()
        if self._credentials is not None:
            user, password = self._credentials
            # After signing: a reverse proxy takes it away again.
            yield b"Proxy-Authorization", b"Basic " + b64encode(f"{user}:{password}".encode())

    def _proxy(self, scheme: str, host: str, port: int) -> Proxy | None:
        proxy = self._proxies.select(scheme, host, port)
        return replace(proxy, credentials=self._credentials) if proxy and self._credentials else proxy

    def _transport(self, proxy: Proxy | None, *, tidying: bool) -> httpx.BaseTransport:
        if self._given is not None:
            return self._given
        with self._lock:
            transport = self._transports.get((proxy, tidying))
            if transport is None:
                patience = Patience(None) if tidying else self._patience
                transport = self._transports[proxy, tidying] = PoolTransport(
                    self._ssl_context, patience, max_connections=self._most, proxy=proxy
                )
        return transport

    def _translated(self, error: Exception, where: Where, proxy: Proxy | None) -> SluiceError | Stopped:
        ours = error_without_answer(error, where, proxy=proxy)
        if isinstance(ours, SluiceError) and ours.reference == "proxy-authentication":
            return proxy_authentication(where)
        return ours


def _basic(auth: AuthConfig) -> tuple[str, str] | None:
    if auth.username is None:
        return None
    return auth.username, auth.password.get_secret_value() if auth.password else ""


def _limited(response: httpx.Response, left: Callable[[], float]) -> Iterator[bytes]:
    size = 0
    # Decoded: a proxy may compress an error document.
    for part in response.iter_bytes():
        size += len(part)
        if size > _MOST:
            raise ServiceError("answer-too-large", f"send: the store answered with more than {_MOST} bytes")
        yield part
        left()


class _Body(httpx.SyncByteStream):
    """A request's body in slices: nothing, bytes, or a file object."""

    def __init__(self, body: Any, left: Callable[[], float]) -> None:
        self._body = body
        self._left = left

    def __iter__(self) -> Iterator[bytes]:
        body = self._body
        if body is None:
            return
        file = io.BytesIO(body.encode() if isinstance(body, str) else body) if not hasattr(body, "read") else body
        while data := file.read(_SLICE):
            self._left()
            yield data
        self._left()


class _Answer(io.BytesIO):
    """The body of an answer as botocore reads it."""

    def stream(self) -> Iterator[bytes]:
        """All of it."""
        yield self.read()
