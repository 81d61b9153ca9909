"""Reading NDJSON line by line, whichever form the file has."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from tasks.shared.ndjson.compression import DecompressedStream, is_compressed
from tasks.shared.ndjson.files import storage_error

# 256 KiB: larger pieces cost more in fresh memory than they save in calls.
_PIECE = 1 << 18


class Content(Protocol):
    """Content of a data file, decompressed where needed."""

    def piece(self, size: int) -> bytes:
        """The next up to ``size`` bytes; empty at the end."""


class _Plain:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def piece(self, size: int) -> bytes:
        return self._file.read(size)


@contextmanager
def open_content(path: Path) -> Iterator[Content]:
    """The content of a data file, whatever its form; the magic bytes decide, not the name.

    Raises ``StorageError`` when the file cannot be read, ``DataError`` (``zst-truncated``, ``zst-corrupt``) when its
    compressed form is broken.
    """
    try:
        with path.open("rb", buffering=0) as file:
            head = file.read(4)
            file.seek(0)
            if not is_compressed(head):
                yield _Plain(file)
                return
            stream = DecompressedStream(file, path.name)
            try:
                yield stream
            finally:
                stream.close()
    except OSError as error:
        raise storage_error(error, path) from None


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
    rest = io.BytesIO()
    first = True
    while piece := content.piece(_PIECE):
        lines = piece.split(b"\n")
        if rest.tell() or first:
            rest.write(lines[0])
            if len(lines) == 1:
                continue
            # getvalue() hands over the buffer itself, so that a long line is not in memory twice.
            lines[0] = rest.getvalue()
            rest = io.BytesIO()
            if first:
                lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
                first = False
        rest.write(lines.pop())
        for line in lines:
            if line.endswith(b"\r"):
                line = line[:-1]
            if keep_blank or (line and not line.isspace()):
                yield line
    last = rest.getvalue()
    if first:
        last = last.removeprefix(codecs.BOM_UTF8)
    last = last.removesuffix(b"\r")
    if last and not last.isspace():
        yield last
