"""Bytes that are too many for memory, in a temporary file that has no name."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tasks.shared.errors import storage_errors
from tasks.shared.files.out_file import OutFile


class Spool(OutFile):
    """Bytes in a nameless temporary file in ``directory``: written in order, read anywhere, gone when closed."""

    def __init__(self, directory: Path) -> None:
        with storage_errors(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        super().__init__(directory)

    def _open(self, keep: int) -> int:
        with tempfile.TemporaryFile(dir=self.path, buffering=0) as file:
            return os.dup(file.fileno())


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
