"""Bytes that are too many for memory, in a temporary file that has no name."""

from __future__ import annotations

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
