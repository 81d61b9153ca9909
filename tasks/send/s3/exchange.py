"""One HTTP exchange with the store: botocore makes and signs the request, our own connections carry it.

botocore offers every signed request to the handlers of its event ``before-send`` and takes an answer from them instead
of its own session. So S3 has the trust (``tls.py``), the proxies (``proxies.py``), the timeouts and the stop
(``wire.py``) of every other call of the pipeline. On ``response-received`` a refusal becomes an error of ours, before
botocore's own retries and region redirects see it.
"""

from __future__ import annotations

import io
import math
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import replace
from threading import Lock, local
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
from botocore.awsrequest import AWSPreparedRequest, AWSResponse

from config import AuthConfig, TlsConfig
from tasks.send.s3.refusal import Refusal, proxy_authentication
from tasks.shared.blanked import SECRETS
from tasks.shared.errors import ServiceError, SluiceError, Stopped
from tasks.shared.http import wire_log
from tasks.shared.http.answer import Answer, BusyError, RefusedError, Where
from tasks.shared.http.failures import error_without_answer
from tasks.shared.http.packed import ENCODINGS, unpacked
from tasks.shared.http.proxies import Proxies, Proxy
from tasks.shared.http.sockets import Patience
from tasks.shared.http.tls import ssl_context
from tasks.shared.http.wire import PoolTransport
from tasks.shared.stop import Stop

_CONNECT_SECONDS: Final = 30.0
_SLICE: Final = 256 * 1024  # bytes of a body between two looks at the stop
_MOST: Final = 16 * 1024 * 1024  # bytes of an answer: a page of a list has less than one MiB
_GRACE: Final = 2.0
"""Seconds that an answer may still take after a stop; with what follows it must stay below ten."""
_LEAST: Final = 0.01
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
    """The connections to one store; thread-safe. ``timeout`` in seconds, for one whole exchange, ``within`` for all.

    ``auth`` holds Basic credentials of an upstream proxy (document 1, "Authentication" rule 7): they go to the proxy
    that the environment names, and with every request, for a reverse proxy in front of the store. ``transport`` and
    ``environ`` are seams for tests.

    Raises ``InputError`` for a certificate bundle or a proxy variable that cannot be used.
    """

    def __init__(
        self,
        *,
        tls: TlsConfig,
        auth: AuthConfig,
        timeout: float,
        within: float = math.inf,
        stop: Stop,
        max_connections: int,
        transport: httpx.BaseTransport | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._timeout = timeout
        self._ends = time.monotonic() + within
        self._stop = stop
        self._most = max_connections
        self._given = transport
        self._ssl_context = ssl_context(tls)
        self._proxies = Proxies(environ)
        self._credentials = _basic(auth)
        SECRETS.auth(auth)
        self._patience = Patience(stop, grace=_GRACE)
        self._lock = Lock()
        self._transports: dict[tuple[Proxy | None, bool], httpx.BaseTransport] = {}
        self._thread = local()

    @property
    def last(self) -> Answer:
        """The answer to this thread's last request: what botocore makes of it has no body any more. Stores quote the
        signature of what they refuse: from here on it is blanked in what is kept, if there is anything to keep.
        """
        authorization: str = self._thread.authorization
        answer: Answer = self._thread.answer
        for secret in filter(None, (authorization, authorization.rpartition("Signature=")[2]) if answer.body else ()):
            SECRETS.token(secret)
        return answer

    def seconds_left(self) -> float:
        """Seconds until no further request is made."""
        return self._ends - time.monotonic()

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
        seconds = min(self._timeout, _LAST_WORDS if tidying else max(self.seconds_left(), _LEAST))
        try:
            if not tidying:
                self._stop.before_request()
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
        error = Refusal(
            context[_WHERE],
            status,
            str(refused.get("Code", "")),
            refused.get("Region"),
            {name.lower(): value for name, value in headers.items()},
        ).error()
        if isinstance(error, RefusedError | BusyError):
            error.answer = self.last
        raise error

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
        timeouts = {"connect": min(seconds, _CONNECT_SECONDS), "read": seconds, "write": seconds, "pool": None}
        request = httpx.Request(
            signed.method,
            signed.url,
            headers=[(b"Host", host.encode("ascii")), *self._headers(signed)],
            stream=_Body(signed.body),
            extensions={"timeout": timeouts, "whole": True},
        )
        told = wire_log.begins(signed.method, signed.url, int(signed.headers.get("Content-Length", 0)))
        try:
            response = transport.handle_request(request)
        except Exception:
            if told is not None:
                told.failed("no answer")
            raise
        response = response if told is None else told.watched(response)
        try:
            content = b"".join(_limited(response))
        finally:
            response.close()
        self._thread.answer = Answer(response.status_code, response.headers, content)
        given = signed.headers.get("Authorization", "")
        self._thread.authorization = given.decode("latin-1") if isinstance(given, bytes) else str(given)
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


def _limited(response: httpx.Response) -> Iterator[bytes]:
    size = 0
    # Decoded: a proxy may compress an error document.
    encoding = response.headers.get("content-encoding", "").strip().lower()
    for part in unpacked(response.iter_raw(), encoding) if encoding in ENCODINGS else response.iter_bytes():
        size += len(part)
        if size > _MOST:
            raise ServiceError("answer-too-large", f"send: the store answered with more than {_MOST} bytes")
        yield part


class _Body(httpx.SyncByteStream):
    """A request's body in slices: nothing, bytes, or a file object."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        body = self._body
        if body is None:
            return
        file = io.BytesIO(body.encode() if isinstance(body, str) else body) if not hasattr(body, "read") else body
        while data := file.read(_SLICE):
            yield data


class _Answer(io.BytesIO):
    """The body of an answer as botocore reads it."""

    def stream(self) -> Iterator[bytes]:
        """All of it."""
        yield self.read()
