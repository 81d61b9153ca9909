"""Reading NDJSON files line by line, whether they are compressed or not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tasks.shared.errors import DataError, storage_errors
from tasks.shared.files.zstd import decompressed, is_zstd

MIB: Final = 1 << 20
_PIECE: Final = 1 << 18
_BLANK: Final = re.compile(rb"\s*")


def pieces(path: Path, *, stored: Callable[[bytes], object] = lambda _: None) -> Iterator[bytes]:
    """Yield the uncompressed content of a data file. Its first bytes show whether it is compressed, not its name.
    ``stored`` gets each piece as stored. Raises ``StorageError``, and ``DataError`` for broken zstd data."""
    with storage_errors(path), path.open("rb", buffering=0) as file:
        head = file.read(_PIECE)

        def read() -> Iterator[bytes]:
            piece = head
            while piece:
                stored(piece)
                yield piece
                piece = file.read(_PIECE)

        yield from decompressed(read(), path.name) if is_zstd(head[:4]) else read()


def lines(path: Path, most: int, *, stored: Callable[[bytes], object] = lambda _: None) -> Iterator[tuple[int, bytes]]:
    """Yield (number, text) of each line that is not blank, numbered from 1, without its line feed. ``most`` is the
    limit of a line in bytes. Raises as ``pieces``, and ``DataError`` (``line-too-large``)."""
    number, size = 0, 0
    begun: list[bytes] = []
    for piece in pieces(path, stored=stored):
        *ended, rest = piece.split(b"\n")
        for text in ended:
            number += 1
            line = b"".join([*begun, text]) if begun else text
            begun, size = [], 0
            if not is_blank(line):
                yield number, line
        if rest:
            begun.append(rest)
            size += len(rest)
            if size > most:
                raise line_too_large(f"{path.name}:{number + 1}", most)
    if begun and not is_blank(line := b"".join(begun)):
        yield number + 1, line


def is_blank(line: bytes | memoryview) -> bool:
    """Return whether a line holds white space alone."""
    return line[:1] in (b"", b" ", b"\t", b"\r", b"\f", b"\v") and _BLANK.fullmatch(line) is not None


def line_too_large(where: str, most: int) -> DataError:
    """Return the error for a line above the limit; ``where`` is ``file:line``, ``most`` the limit in bytes."""
    return DataError(
        "line-too-large", f"the line is larger than {most // MIB} MiB", context=where,
        hint="raise limits.max_line_mb if the data are right; a run needs about four times as much memory",
    )  # fmt: skip
