"""Bytes that are too many for memory, in a temporary file that has no name."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from typing import Self

from tasks.shared.errors import storage_errors
from tasks.shared.files.out_file import write_all


class Spool:
    """Bytes in a nameless temporary file, mode 0600: written in order, read anywhere, gone when closed."""

    def __init__(self, directory: Path) -> None:
        self.size = 0
        self._directory = directory
        with storage_errors(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - closed by close

    def write(self, data: bytes | memoryview) -> None:
        """Append ``data``; all of it, or ``StorageError``."""
        with storage_errors(self._directory):
            write_all(self._file.fileno(), data)
        self.size += len(data)

    def read(self, start: int, end: int) -> bytes:
        """The bytes from ``start`` to before ``end``."""
        pieces: list[bytes] = []
        with storage_errors(self._directory):
            while start < end and (data := os.pread(self._file.fileno(), end - start, start)):
                pieces.append(data)
                start += len(data)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Give the space back. Safe to call twice."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def spooled(text: bytes | Spool, directory: Path) -> Spool:
    """The text in a spool, if it is not in one yet."""
    if isinstance(text, Spool):
        return text
    spool = Spool(directory)
    try:
        spool.write(text)
    except BaseException:
        spool.close()
        raise
    return spool


class Rest:
    """The beginning of a line whose end has not come yet: in memory, or spooled once it is more than ``most`` bytes."""

    def __init__(self, most: int, directory: Path) -> None:
        self._most = most
        self._directory = directory
        self._text = io.BytesIO()
        self._spool: Spool | None = None

    @property
    def begun(self) -> bool:
        """Whether there is anything."""
        return self._spool is not None or bool(self._text.tell())

    def add(self, data: memoryview) -> None:
        """Append the next part."""
        if self._spool is None and self._text.tell() + len(data) > self._most:
            self._spool = Spool(self._directory)
            self._spool.write(self._text.getvalue())
            self._text = io.BytesIO()
        (self._spool or self._text).write(data)

    def take(self) -> bytes | Spool:
        """The line; whoever takes a spool closes it."""
        if self._spool is not None:
            spool, self._spool = self._spool, None
            return spool
        # getvalue() hands over the memory itself: a line is there once, not twice.
        text, self._text = self._text.getvalue(), io.BytesIO()
        return text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._spool is not None:
            self._spool.close()
