"""One outgoing call: its URL and origin, its headers, its body; and each request that is made for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import NoReturn
from urllib.parse import urljoin

import httpx

from tasks.shared.errors import InputError, ServiceError, SluiceError, Stopped
from tasks.shared.http_old import wire_log
from tasks.shared.http_old.answer import (
    DEFAULT_TRANSIENT,
    Answer,
    RequestContext,
    error_for,
    error_without_answer,
    place,
)
from tasks.shared.http_old.body import ENCODINGS, SILENCE, SLICE, Body, BodyStream, MemoryBody, unpacked
from tasks.shared.http_old.proxies import Proxy
from tasks.shared.http_old.wire_log import LoggedRequest

Pairs = list[tuple[bytes, bytes]]
"""Headers as they are sent."""

# Never taken from a caller to another origin.
_SECRET_HEADERS = frozenset({b"authorization", b"cookie", b"proxy-authorization"})
_MAX_CONNECT_SECONDS = 30.0
_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
_PLAIN = frozenset({"", "identity"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_READING = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True, repr=False)
class RequestTarget:
    """A parsed URL: whole, as text for ``urljoin``, and its origin (scheme, host, port)."""

    url: httpx.URL
    text: str
    origin: tuple[str, str, int]

    @property
    def name(self) -> str:
        """Return the origin, for a message."""
        scheme, host, port = self.origin
        return f"{scheme}://{host}:{port}"


@dataclass(slots=True, repr=False)
class Call:
    """Shared facts of the attempts of one call. ``service`` is the key under ``services``."""

    service: str
    method: str
    target: RequestTarget
    operation: str
    timeout: float
    headers: Pairs
    content: bytes | Body | None = None
    accept: Collection[int] = ()
    transient: Collection[int] = DEFAULT_TRANSIENT
    max_answer_bytes: int = 1024 * 1024
    wants_body: bool = True
    silence: float = SILENCE
    whole: bool = True
    """``timeout`` is for the whole answer; if false, for each part of its body."""
    credentials: bool | None = None
    allow_cross_origin: bool = False
    attempt: int = 0

    @property
    def size(self) -> int:
        """Return the size of the request body in bytes."""
        content = self.content
        return 0 if content is None else len(content) if isinstance(content, bytes) else content.length

    def welcomes(self, status: int) -> bool:
        """Return whether the caller accepts this status."""
        return 200 <= status < 300 or status in self.accept


@functools.lru_cache(maxsize=512)
def parse_target(url: str) -> RequestTarget:
    """Parse a URL. Raises ``InputError`` (``url-invalid``)."""
    try:
        parsed = httpx.URL(url)
        # httpx escapes characters that a host name cannot contain instead of refusing them.
        if parsed.scheme in ("http", "https") and parsed.host and b"%" not in parsed.raw_host:
            port = parsed.port or (443 if parsed.scheme == "https" else 80)
            return RequestTarget(parsed.copy_with(fragment=None), url, (parsed.scheme, parsed.host.lower(), port))
    except (httpx.InvalidURL, ValueError):  # their texts quote the URL
        pass
    raise InputError("url-invalid", "this is not an http or https URL", context=place(url)) from None


@functools.cache
def user_agent() -> bytes:
    """Our name in requests."""
    try:
        return f"sluice/{metadata.version('sluice')}".encode("ascii")
    except metadata.PackageNotFoundError:
        return b"sluice"


def merged(base: Pairs, headers: Mapping[str, str] | None) -> Pairs:
    """``base`` with a caller's headers, which win."""
    if not headers:
        return base
    try:
        own = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
    except UnicodeEncodeError:  # its text quotes the value
        raise InputError("header-invalid", "a header of a request is not ASCII") from None
    names = {name.lower() for name, _ in own}
    return [pair for pair in base if pair[0].lower() not in names] + own


@dataclass(slots=True, repr=False)
class Hop:
    """One request of a call: to its target, or to where a redirect led. ``started`` is on the client's clock."""

    call: Call
    target: RequestTarget
    proxy: Proxy | None
    started: float
    check: Callable[[Hop], None] = lambda _: None
    """Raises when a body on its way must end; sees every piece as it comes: of a packed body many may come before there
    is anything to unpack. It gets the hop and does not hold it: in a cycle both bodies would stay in memory."""
    in_body: bool = False
    """True once the answer has begun, as a stream: then a silence is a ``StalledError``."""
    logged: LoggedRequest | None = None

    @property
    def where(self) -> RequestContext:
        """Return the request that errors name."""
        return RequestContext(self.call.service, self.call.operation, self.call.method, self.target.text)

    def broken(self, error: Exception) -> SluiceError | Stopped:
        """Return our error for an exception before the end of the answer."""
        return error_without_answer(error, self.where, proxy=self.proxy, in_body=self.in_body)

    def unwelcome(self, answer: Answer) -> SluiceError:
        """Return the error for an answer that the caller did not ask for."""
        return error_for(answer, self.where, transient=self.call.transient)

    def send(self, transport: httpx.BaseTransport, secrets: Pairs) -> httpx.Response:
        """Make the request and return the response, its body not read yet. Raises our errors."""
        if wire_log.listener is not None:
            self.logged = LoggedRequest(self.call.method, self.target.text, self.call.size)
        try:
            response = transport.handle_request(self._request(secrets))
            # A new one: a test's transport may give one whose body is read.
            return httpx.Response(
                response.status_code,
                headers=response.headers,
                stream=_IncomingStream(self, response),
                extensions=response.extensions,
            )
        except Exception as error:  # noqa: BLE001 - the seam where foreign errors become ours
            wrong = self.broken(error)
            if self.logged is not None:
                self.logged.failed(wrong.reference if isinstance(wrong, SluiceError) else "stopped")
            raise wrong from None

    def _request(self, secrets: Pairs) -> httpx.Request:
        call, url = self.call, self.target.url
        seconds = call.timeout
        content = call.content
        silence = {"connect": min(seconds, _MAX_CONNECT_SECONDS), "read": seconds, "write": seconds, "pool": seconds}
        stream: httpx.SyncByteStream
        check = functools.partial(self.check, self)
        if content is None or isinstance(content, bytes):
            content = content or b""
            large = call.size > SLICE
            stream = BodyStream(MemoryBody(content), check) if large else httpx.ByteStream(content)
        else:
            stream = BodyStream(content, check)
            silence["write"] = min(seconds, call.silence)
        headers = call.headers
        if self.target.origin != call.target.origin:
            headers = [pair for pair in headers if pair[0].lower() not in _SECRET_HEADERS]
        # Given a stream, httpx adds no headers.
        whole = [(b"Host", url.netloc), *headers, *secrets]
        if call.size or call.method not in _BODILESS:
            whole.append((b"Content-Length", b"%d" % call.size))
        extensions = {"timeout": silence, "whole": call.whole}
        return httpx.Request(call.method, url, headers=whole, stream=stream, extensions=extensions)

    def redirected(self, response: httpx.Response) -> RequestTarget | None:
        """Return where an answer sends us, if it does. Raises ``ServiceError`` where we may not go there."""
        call, status, location = self.call, response.status_code, response.headers.get("location")
        if status not in _REDIRECTS or status in call.accept or location is None:
            return None

        def refuse(reference: str, what: str, hint: str) -> NoReturn:
            raise self.where.error(ServiceError, reference, what, hint=hint, status=status) from None

        if call.method not in _READING:
            refuse("redirect-refused", "was redirected, not accepted", "configure the URL that the service is at")
        try:
            following = parse_target(urljoin(self.target.text, location.strip()))
        except (InputError, ValueError):
            refuse("redirect-invalid", "was redirected to no HTTP URL", "see the log of the service")
        what = f"was redirected from {self.target.name} to {following.name}"
        if self.target.origin[0] == "https" and following.origin[0] != "https":
            refuse("redirect-downgrade", f"{what}, out of TLS", "configure an https URL that does not redirect")
        if following.origin != self.target.origin and not call.allow_cross_origin:
            refuse("redirect-cross-origin", what, "configure that URL if it is the one that is meant")
        return following

    def content(self, response: httpx.Response) -> Iterator[bytes]:
        """Yield the body of an answer, unpacked."""
        encoding = response.headers.get("content-encoding", "").strip().lower()
        if encoding not in _PLAIN | ENCODINGS:
            raise httpx.DecodingError("")
        body = response.iter_raw()
        size = 0
        for part in body if encoding in _PLAIN else unpacked(body, encoding):
            yield part
            size += len(part)
            if size > self.call.max_answer_bytes:
                what = f"was answered with more than {self.call.max_answer_bytes} bytes"
                raise self.where.error(ServiceError, "answer-too-large", what, status=response.status_code)


class _IncomingStream(httpx.SyncByteStream):
    """The body of an answer as it comes, not decoded. Its errors are ours; it is logged when it is closed."""

    def __init__(self, hop: Hop, response: httpx.Response) -> None:
        if not isinstance(response.stream, httpx.SyncByteStream):
            raise TypeError("a sync transport gives a sync stream")
        self._hop = hop
        self._status = response.status_code
        self._parts = response.stream
        self._received = 0

    def __iter__(self) -> Iterator[bytes]:
        try:
            for part in self._parts:
                self._received += len(part)
                yield part
                self._hop.check(self._hop)
        except Exception as error:  # noqa: BLE001 - the seam where foreign errors become ours
            raise self._hop.broken(error) from None

    def close(self) -> None:
        """Close the connection, or release it."""
        logged, self._hop.logged = self._hop.logged, None
        try:
            self._parts.close()
        finally:
            if logged is not None:
                logged.answered(self._status, self._received)
