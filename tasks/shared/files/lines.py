"""Reading NDJSON line by line, whichever form the file has."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, Self

from tasks.shared.errors import storage_errors
from tasks.shared.files.compression import DecompressedStream, is_compressed
from tasks.shared.files.out_file import Spool

_PIECE = 1 << 18
"""Bytes per piece. One buffer is filled again and again: fresh memory for each piece halves the speed."""


Tee = Callable[[bytes | memoryview], object]
"""Sees bytes as they pass; a view is valid during the call alone."""


class ContentReader(Protocol):
    """Content of a data file, decompressed where needed."""

    def readinto(self, buffer: bytearray, /) -> int | None:
        """Fill the buffer from its start; how many bytes, 0 at the end."""


class _Teed:
    """Content whose pieces are also passed to ``tee``."""

    def __init__(self, content: ContentReader, tee: Tee) -> None:
        self._content = content
        self._tee = tee

    def readinto(self, buffer: bytearray, /) -> int | None:
        count = self._content.readinto(buffer)
        if count:
            self._tee(memoryview(buffer)[:count])
        return count


@contextmanager
def open_content(path: Path, *, stored: Tee | None = None, content: Tee | None = None) -> Iterator[ContentReader]:
    """Return the content of a data file, whatever its form; the magic bytes decide, not the name.

    ``stored`` gets the bytes on disk, ``content`` the decompressed bytes, in the same pass; all of them if the file
    is read to the end.

    Raises ``StorageError`` when the file cannot be read, ``DataError`` (``zst-truncated``, ``zst-corrupt``) when its
    compressed form is broken.
    """
    with storage_errors(path), path.open("rb", buffering=0) as file:
        head = file.read(4)
        file.seek(0)
        if not is_compressed(head):
            plain: ContentReader = file
            for tee in (stored, content):
                plain = plain if tee is None else _Teed(plain, tee)
            yield plain
            return
        stream = DecompressedStream(file, path.name, tee=stored)
        try:
            yield stream if content is None else _Teed(stream, content)
        finally:
            stream.close()


def pieces_of(path: Path) -> Iterator[memoryview]:
    """Yield the content of a data file in pieces, each valid until the next. Raises as ``open_content``."""
    buffer = bytearray(_PIECE)
    view = memoryview(buffer)
    with open_content(path) as content:
        while count := content.readinto(buffer):
            yield view[:count]


def head_of(path: Path, size: int) -> bytes:
    """Return the first bytes of the content of a data file, at most ``size``. Raises as ``open_content``."""
    head = bytearray()
    for piece in pieces_of(path):
        head += piece[: size - len(head)]
        if len(head) == size:
            break
    return bytes(head)


def texts(content: ContentReader, most: int, spool: Path) -> Iterator[bytes | Spool]:
    """Yield the lines without line feeds; a line of more than ``most`` bytes that is not within one piece is in a spool
    below ``spool``. The caller closes it."""
    buffer = bytearray(_PIECE)
    view = memoryview(buffer)
    with _Rest(most, spool) as rest:
        while count := content.readinto(buffer):
            start, end = 0, buffer.find(b"\n", 0, count)
            if end >= 0 and rest.begun:
                rest.add(view[:end])
                yield rest.line()
                start, end = end + 1, buffer.find(b"\n", end + 1, count)
            while end >= 0:
                yield bytes(view[start:end])
                start, end = end + 1, buffer.find(b"\n", end + 1, count)
            if start < count:
                rest.add(view[start:count])
        if rest.begun:
            yield rest.line()


class _Rest:
    """The beginning of a line whose end has not come yet: in memory, or spooled once it is more than ``most`` bytes."""

    def __init__(self, most: int, directory: Path) -> None:
        self._most = most
        self._directory = directory
        self._text = io.BytesIO()
        self._spool: Spool | None = None

    @property
    def begun(self) -> bool:
        """Return whether the line has any bytes."""
        return self._spool is not None or bool(self._text.tell())

    def add(self, data: memoryview) -> None:
        """Append the next part."""
        if self._spool is None and self._text.tell() + len(data) > self._most:
            self._spool = Spool(self._directory)
            self._spool.write(self._text.getvalue())
            self._text = io.BytesIO()
        (self._spool or self._text).write(data)

    def line(self) -> bytes | Spool:
        """Return the line; the caller closes a spool."""
        if self._spool is not None:
            spool, self._spool = self._spool, None
            return spool
        # getvalue() returns the memory without a copy of the line.
        text, self._text = self._text.getvalue(), io.BytesIO()
        return text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._spool is not None:
            self._spool.close()
