"""Bodies: of a request too large for memory, and of an answer that is packed.

A repeated request must be byte-identical (document 3 §1), so a body has a known length and can be opened for each
attempt, unlike an iterator. ``BodyStream`` sends it.

The body of an answer must end where its packed form ends. httpx unpacks as well, but accepts a body with a cut trailer,
ignores bytes after the end, and unpacks each received piece at once, whatever its size becomes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final, Protocol

import httpx

from tasks.shared.errors import StorageError, storage_errors

SLICE: Final = 1024 * 1024
"""Bytes of a body between two checks of the deadline and the stop."""

SILENCE: Final = 120.0
"""Seconds in which a service must take some byte of a ``Body``. The timeout of a whole large upload is hours: a service
that stopped reading is to be noticed before that."""


class Body(Protocol):
    """Content of a request, read in pieces. Both must return the same for every attempt."""

    @property
    def length(self) -> int:
        """Return the length in bytes: the ``Content-Length``."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the body from the start, in pieces of about ``SLICE`` bytes."""


class FileBody:
    """The first ``length`` bytes of a file.

    ``sent`` gets the number of bytes of an attempt read so far. Raises ``StorageError``: ``file-changed`` when the
    file became shorter.
    """

    def __init__(self, path: Path, length: int, *, sent: Callable[[int], None] = lambda _: None) -> None:
        self.path = path
        self._length = length
        self._sent = sent

    @property
    def length(self) -> int:
        """Return the length in bytes."""
        return self._length

    def pieces(self) -> Iterator[bytes]:
        """Yield the file's content from its start."""
        done = 0
        with storage_errors(self.path), self.path.open("rb") as file:
            while done < self._length:
                piece = file.read(min(SLICE, self._length - done))
                if not piece:
                    what = "the file became shorter while it was sent"
                    hint = "nothing else may write into the job directory; continue the job"
                    raise StorageError("file-changed", what, context=str(self.path), hint=hint)
                done += len(piece)
                yield piece
                self._sent(done)


class MemoryBody:
    """Parts that are in memory, one after the other: joined, all of them would be there twice."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = parts

    @property
    def length(self) -> int:
        """Return the length in bytes."""
        return sum(map(len, self._parts))

    def pieces(self) -> Iterator[bytes]:
        """Yield the parts in pieces: written at once, a large one would be copied with every partial send."""
        for part in self._parts:
            for start in range(0, len(part), SLICE):
                yield part[start : start + SLICE]


class BodyStream(httpx.SyncByteStream):
    """A ``Body`` on its way out, opened afresh."""

    def __init__(self, body: Body, check: Callable[[], None]) -> None:
        self._body = body
        self._check = check

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._body.pieces():
            self._check()
            yield piece


ENCODINGS: Final = frozenset({"gzip", "x-gzip", "deflate"})
"""Values of ``Content-Encoding`` that can be unpacked."""

_GZIP: Final = zlib.MAX_WBITS | 16
_MAGIC: Final = b"\x1f\x8b"
_MOST: Final = 1 << 18
"""Bytes that are unpacked at once."""


class BrokenBodyError(Exception):
    """A packed body is cut or damaged, or something follows its end."""


def unpacked(parts: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Yield the content of a body packed with ``encoding``, in pieces of at most 256 KiB.

    A gzip body may have several members (RFC 1952 §2.2), deflate comes with and without a zlib header, and a body
    without any byte is empty. Raises ``BrokenBodyError``, and ``httpx.DecodingError`` for another packing.
    """
    coming = iter(parts)
    head = b""
    while len(head) < len(_MAGIC) and (part := next(coming, None)) is not None:
        head += part
    if not head:
        return
    gzip = encoding != "deflate"
    engine = zlib.decompressobj(_GZIP if gzip else zlib.MAX_WBITS if _begins_zlib(head) else -zlib.MAX_WBITS)
    begun = False
    for part in chain((head,), coming):
        data = part
        while data:
            if engine.eof:
                if not gzip or not _MAGIC.startswith(data[: len(_MAGIC)]):
                    raise BrokenBodyError
                engine = zlib.decompressobj(_GZIP)
            try:
                content = engine.decompress(data, _MOST)
            except zlib.error:
                raise (BrokenBodyError if begun else httpx.DecodingError("")) from None
            data = engine.unused_data if engine.eof else engine.unconsumed_tail
            if content:
                begun = True
                yield content
    if not engine.eof:
        yield engine.flush()
    if not engine.eof:
        raise BrokenBodyError


def _begins_zlib(head: bytes) -> bool:
    """Return whether this is a zlib header (RFC 1950 §2.2); many servers send deflate without one."""
    return len(head) >= 2 and head[0] & 0x0F == 8 and int.from_bytes(head[:2]) % 31 == 0
