"""Reading NDJSON line by line, whichever form the file has."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tasks.shared.errors import storage_errors
from tasks.shared.files.compression import DecompressedStream, is_compressed

_PIECE = 1 << 18
"""Bytes per piece. One buffer is filled again and again: fresh memory for each piece halves the speed."""


Tee = Callable[[bytes | memoryview], object]
"""Sees bytes as they pass; a view is valid during the call alone."""


class Content(Protocol):
    """Content of a data file, decompressed where needed."""

    def readinto(self, buffer: bytearray, /) -> int | None:
        """Fill the buffer from its start; how many bytes, 0 at the end."""


class _Teed:
    """Content of which somebody sees each piece as it passes."""

    def __init__(self, content: Content, tee: Tee) -> None:
        self._content = content
        self._tee = tee

    def readinto(self, buffer: bytearray, /) -> int | None:
        count = self._content.readinto(buffer)
        if count:
            self._tee(memoryview(buffer)[:count])
        return count


@contextmanager
def open_content(path: Path, *, stored: Tee | None = None, content: Tee | None = None) -> Iterator[Content]:
    """The content of a data file, whatever its form; the magic bytes decide, not the name.

    ``stored`` sees the bytes as they lie on disk, ``content`` those inside, both in the same pass; whoever reads to the
    end has shown them all.

    Raises ``StorageError`` when the file cannot be read, ``DataError`` (``zst-truncated``, ``zst-corrupt``) when its
    compressed form is broken.
    """
    with storage_errors(path), path.open("rb", buffering=0) as file:
        head = file.read(4)
        file.seek(0)
        if not is_compressed(head):
            plain: Content = file
            for tee in (stored, content):
                plain = plain if tee is None else _Teed(plain, tee)
            yield plain
            return
        stream = DecompressedStream(file, path.name, tee=stored)
        try:
            yield stream if content is None else _Teed(stream, content)
        finally:
            stream.close()


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of an NDJSON file, in order, without their line ends; plain or zstd, told by its magic bytes.

    Lines may have any length; memory is one piece and the current line, once. Blank lines are skipped, a byte order
    mark at the start is dropped, the last line needs no line feed. Nothing is parsed: an import checked the lines
    when they came in.

    Raises ``DataError`` ``zst-truncated`` or ``zst-corrupt``, and ``StorageError``.
    """
    with open_content(path) as content:
        yield from _split(content)


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Like ``read_lines``, with the number of each line in the file, from 1, blank lines counted too."""
    with open_content(path) as content:
        for number, line in enumerate(_split(content, keep_blank=True), 1):
            if line and not line.isspace():
                yield number, line


def _split(content: Content, *, keep_blank: bool = False) -> Iterator[bytes]:
    first = True
    for line in _raw_lines(content):
        if first:
            line = line.removeprefix(codecs.BOM_UTF8)
            first = False
        if line.endswith(b"\r"):
            line = line[:-1]
        if keep_blank or (line and not line.isspace()):
            yield line


def _raw_lines(content: Content) -> Iterator[bytes]:
    buffer = bytearray(_PIECE)
    view = memoryview(buffer)
    rest = io.BytesIO()
    while count := content.readinto(buffer):
        start, end = 0, buffer.find(b"\n", 0, count)
        if end >= 0 and rest.tell():
            rest.write(view[:end])
            # getvalue() hands over the memory itself: a long line is there once, not twice.
            line = rest.getvalue()
            rest = io.BytesIO()
            yield line
            start, end = end + 1, buffer.find(b"\n", end + 1, count)
        while end >= 0:
            yield bytes(view[start:end])
            start, end = end + 1, buffer.find(b"\n", end + 1, count)
        rest.write(view[start:count])
    if rest.tell():
        yield rest.getvalue()
