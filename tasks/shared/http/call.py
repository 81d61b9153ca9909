"""One outgoing call, before it is sent: its URL and origin, its headers, its body."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import httpx

from tasks.shared.errors import InputError
from tasks.shared.http.answer import DEFAULT_TRANSIENT, place
from tasks.shared.http.body import SILENCE, SLICE, Body, BodyStream, SlicedStream

Pairs = list[tuple[bytes, bytes]]
"""Headers as they are sent."""

# Never taken from a caller to another origin.
_SECRET_HEADERS = frozenset({b"authorization", b"cookie", b"proxy-authorization"})
_MAX_CONNECT_SECONDS = 30.0
_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


@dataclass(frozen=True, slots=True, repr=False)
class Target:
    """A parsed URL: whole, as text for ``urljoin``, and its origin (scheme, host, port)."""

    url: httpx.URL
    text: str
    origin: tuple[str, str, int]


@dataclass(slots=True, repr=False)
class Call:
    """What the attempts of one call have in common."""

    method: str
    target: Target
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
    """Whether ``timeout`` is that of the whole answer, or of each part of its body."""
    credentials: bool | None = None
    allow_cross_origin: bool = False
    attempt: int = 0

    @property
    def size(self) -> int:
        """Bytes of the body that goes out."""
        content = self.content
        return 0 if content is None else len(content) if isinstance(content, bytes) else content.length

    def welcomes(self, status: int) -> bool:
        """Whether the caller takes an answer with this status."""
        return 200 <= status < 300 or status in self.accept


def without_secrets(headers: Pairs) -> Pairs:
    """The headers that may go to an origin the caller did not name."""
    return [pair for pair in headers if pair[0].lower() not in _SECRET_HEADERS]


@functools.lru_cache(maxsize=512)
def parse_target(url: str) -> Target:
    """A URL, parsed. Raises ``InputError`` (``url-invalid``)."""
    try:
        parsed = httpx.URL(url)
        # httpx escapes what cannot stand in a host name instead of refusing it.
        if parsed.scheme in ("http", "https") and parsed.host and b"%" not in parsed.raw_host:
            port = parsed.port or (443 if parsed.scheme == "https" else 80)
            return Target(parsed.copy_with(fragment=None), url, (parsed.scheme, parsed.host.lower(), port))
    except (httpx.InvalidURL, ValueError):  # their texts quote the URL
        pass
    raise InputError("url-invalid", "this is not an http or https URL", context=place(url)) from None


def named(target: Target) -> str:
    """Its origin, for a message."""
    scheme, host, port = target.origin
    return f"{scheme}://{host}:{port}"


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


def request_for(call: Call, target: Target, headers: Pairs, check: Callable[[], None]) -> httpx.Request:
    """One attempt at a call. ``check`` raises when a large body on its way out must end."""
    seconds = call.timeout
    content = call.content
    silence = {"connect": min(seconds, _MAX_CONNECT_SECONDS), "read": seconds, "write": seconds, "pool": seconds}
    stream: httpx.SyncByteStream
    if content is None or isinstance(content, bytes):
        content = content or b""
        length = len(content)
        stream = SlicedStream(content, check) if length > SLICE else httpx.ByteStream(content)
    else:
        length, stream = content.length, BodyStream(content, check)
        silence["write"] = min(seconds, call.silence)
    # Given a stream, httpx adds no headers of its own, and does not look for what it could add.
    whole = [(b"Host", target.url.netloc), *headers]
    if length or call.method not in _BODILESS:
        whole.append((b"Content-Length", b"%d" % length))
    extensions = {"timeout": silence, "whole": call.whole}
    return httpx.Request(call.method, target.url, headers=whole, stream=stream, extensions=extensions)


def plain_parts(response: httpx.Response) -> httpx.SyncByteStream:
    """The body of a response as it comes, not decoded."""
    if not isinstance(response.stream, httpx.SyncByteStream):
        raise TypeError("a sync transport gives a sync stream")
    return response.stream


def renewed(
    response: httpx.Response, broken: Callable[[Exception], Exception], check: Callable[[], None] = lambda: None
) -> httpx.Response:
    """A response whose body is not read yet, also when a test's transport gave one that is.

    ``broken`` translates the errors that occur while the body is read. ``check`` raises when it must end; it sees every
    piece as it comes: of a packed body many may come before there is anything to unpack.
    """
    return httpx.Response(
        response.status_code,
        headers=response.headers,
        stream=_WatchedStream(plain_parts(response), broken, check),
        extensions=response.extensions,
    )


class _WatchedStream(httpx.SyncByteStream):
    """The body of an answer as it comes, whose errors are ours."""

    def __init__(
        self, parts: httpx.SyncByteStream, broken: Callable[[Exception], Exception], check: Callable[[], None]
    ) -> None:
        self._parts = parts
        self._broken = broken
        self._check = check

    def __iter__(self) -> Iterator[bytes]:
        try:
            for part in self._parts:
                yield part
                self._check()
        except Exception as error:  # noqa: BLE001 - the seam where foreign errors become ours
            raise self._broken(error) from None

    def close(self) -> None:
        """Close the connection, or give it back."""
        self._parts.close()
