"""Unpacking the body of an answer, which must end where its packed form ends (document 3 §1).

httpx unpacks as well, but takes a body whose trailer is cut, ignores what follows the end, and unpacks a piece of the
network at once, however much it becomes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import httpx

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
    without any byte is empty. Raises ``BrokenBodyError``, and ``httpx.DecodingError`` for one that is not packed so.
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
    """Whether this is a zlib header (RFC 1950 §2.2); many servers send deflate without one."""
    return len(head) >= 2 and head[0] & 0x0F == 8 and int.from_bytes(head[:2]) % 31 == 0
