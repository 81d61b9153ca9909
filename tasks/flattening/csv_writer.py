"""A group's table: ``csv/<name>.csv``, UTF-8, one header, called ``….partial`` until the whole step is done.

A batch is kept when ``keep`` has it on the disk; what was written of one that failed is cut off again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tasks.flattening.rows import NoRowError, RowReader, Shape, header
from tasks.shared.errors import storage_error
from tasks.shared.files.out_file import sync_directory

CSV: Final = ".csv"
PARTIAL: Final = ".partial"
LONGEST_ROW: Final = 64 << 20
"""Bytes. What has no line end up to there is no row."""


class Table:
    """The table at ``path``, in the making, begun or continued by ``open``. For one thread at a time.

    Raises ``StorageError``.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self.partial = path.with_name(path.name + PARTIAL)
        self.shape = Shape(columns)
        self.header = header(columns)
        self.size = len(self.header)
        """Bytes that are kept."""
        self._handle = -1

    def can_continue(self, size: int) -> bool:
        """Whether the unfinished table has at least ``size`` bytes, and is a private file of ours."""
        try:
            facts = self.partial.lstat()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise storage_error(error, self.partial) from None
        return (
            stat.S_ISREG(facts.st_mode)
            and facts.st_uid == os.geteuid()
            and facts.st_nlink == 1
            and facts.st_size >= size
        )

    def open(self, size: int | None = None) -> None:
        """Go on behind the first ``size`` bytes; without it, begin anew with the header."""
        flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            if size is None:
                # A leftover is replaced, never written into: it may have another owner or be a link.
                self.partial.unlink(missing_ok=True)
                self._handle = os.open(self.partial, flags | os.O_CREAT | os.O_EXCL, 0o600)
            else:
                self._handle = os.open(self.partial, flags)
        except OSError as error:
            raise storage_error(error, self.partial) from None
        if size is None:
            self.write(self.header)
        else:
            self.size = size
            self.drop()

    def write(self, text: bytes) -> None:
        """Append; ``keep`` or ``drop`` decides about it."""
        view = memoryview(text)
        try:
            while view:
                view = view[os.write(self._handle, view) :]
        except OSError as error:
            raise storage_error(error, self.partial) from None

    def drop(self) -> None:
        """Cut off what was written since the last ``keep``."""
        try:
            os.ftruncate(self._handle, self.size)
            os.lseek(self._handle, self.size, os.SEEK_SET)
        except OSError as error:
            raise storage_error(error, self.partial) from None

    def keep(self) -> int:
        """Force what was written to the disk; how many bytes that are since the last time."""
        try:
            os.fsync(self._handle)
            end = os.lseek(self._handle, 0, os.SEEK_CUR)
        except OSError as error:
            raise storage_error(error, self.partial) from None
        added, self.size = end - self.size, end
        return added

    def publish(self) -> None:
        """Give the finished table its name. The caller syncs the directory."""
        self.close()
        try:
            self.partial.replace(self.path)
        except OSError as error:
            raise storage_error(error, self.path) from None

    def close(self) -> None:
        """Close the file, and leave it there; a second call does nothing."""
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            os.close(handle)


class AnswerWriter:
    """Writes the rows of one answer to ``table`` while they arrive, in pieces of any size.

    ``begin`` starts over, ``end`` takes the last row. Raises ``NoRowError`` and ``StorageError``.
    """

    def __init__(self, table: Table, *, longest: int = LONGEST_ROW) -> None:
        self._table = table
        self._longest = longest
        self.begin()

    def begin(self) -> None:
        """Forget what was written of an earlier attempt."""
        self._table.drop()
        self.rows = RowReader(self._table.shape)
        self._rest = bytearray()

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the answer."""
        end = piece.rfind(b"\n") + 1
        if end:
            block = bytes(self._rest) + piece[:end] if self._rest else piece[:end]
            self._rest = bytearray(piece[end:])
            self._table.write(self.rows.read(block))
        else:
            self._rest += piece
        if len(self._rest) > self._longest:
            raise NoRowError(self.rows.count + 1, bytes(self._rest[: 1 << 20]))

    def end(self) -> None:
        """The answer is complete: its last row may lack a line end."""
        if self._rest:
            block, self._rest = bytes(self._rest), bytearray()
            self._table.write(self.rows.read(block))


def publish(tables: Sequence[Table], directory: Path) -> None:
    """Give finished tables their names, for good."""
    for table in tables:
        table.publish()
    sync_directory(directory)
