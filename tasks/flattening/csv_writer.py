"""A group's table: ``csv/<name>.csv``, UTF-8, one header, called ``….partial`` until the whole step is done.

A batch is kept when ``keep`` has it on the disk; what was written of one that failed is cut off again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from tasks.flattening.agreement import Agreement, Rule
from tasks.flattening.rows import NoRowError, RowReader, Shape, header
from tasks.shared.files.out_file import OutFile

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
        self._file: OutFile | None = None

    def open(self, size: int | None = None) -> None:
        """Go on behind the first ``size`` bytes; without it, begin anew with the header."""
        self._file = OutFile(self.partial, size or 0)
        if size is None:
            self.write(self.header)
        else:
            self.size = size

    def write(self, text: bytes) -> None:
        """Append; ``keep`` or ``drop`` decides about it."""
        self._opened.write(text)

    def drop(self) -> None:
        """Cut off what was written since the last ``keep``."""
        self._opened.cut(self.size)

    def keep(self) -> int:
        """Force what was written to the disk; how many bytes that are since the last time."""
        self._opened.sync()
        added, self.size = self._opened.size - self.size, self._opened.size
        return added

    def close(self) -> None:
        """Close the file, and leave it there; a second call does nothing."""
        if self._file is not None:
            self._file.close()

    @property
    def _opened(self) -> OutFile:
        assert self._file is not None  # noqa: S101 - for the type checker
        return self._file


class AnswerWriter:
    """Writes the rows of one answer to ``table`` while they arrive, in pieces of any size.

    By ``rule`` they must be those of the resources with these ``ids``. ``begin`` starts over, ``end`` takes the last
    row; then ``with_rows`` says how many resources had one. ``last`` is what was read last, or where rows ceased to be
    right, for private files. Raises
    ``NoRowError``, ``RowsDifferError`` and ``StorageError``.
    """

    def __init__(self, table: Table, rule: Rule, ids: Collection[str]) -> None:
        self._table = table
        self._rule = rule
        self._ids = ids
        self.begin()

    def begin(self) -> None:
        """Forget what was written of an earlier attempt."""
        self.drop()
        self.rows = RowReader(self._table.shape, self._rule.column)
        self.with_rows = 0
        self.last = b""
        self._right = True
        self._agreement = Agreement(self._rule, self._ids)
        self._rest = bytearray()

    def drop(self) -> None:
        """Cut off what was written of this answer."""
        self._table.drop()

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the answer."""
        end = piece.rfind(b"\n") + 1
        if end:
            block = bytes(self._rest) + piece[:end] if self._rest else piece[:end]
            self._rest = bytearray(piece[end:])
            self._read(block)
        else:
            self._rest += piece
        if len(self._rest) > LONGEST_ROW:
            raise NoRowError(self.rows.count + 1, bytes(self._rest[: 1 << 20]))

    def end(self) -> None:
        """The answer is complete: its last row may lack a line end."""
        if self._rest:
            block, self._rest = bytes(self._rest), bytearray()
            self._read(block)
        self.with_rows = self._agreement.end()

    def _read(self, block: bytes) -> None:
        text = self.rows.read(block)
        if self._right:
            self.last = block
            self._right = self._agreement.take(self.rows.ids)
            self._table.write(text)
        else:
            self._agreement.take(self.rows.ids)  # only counted: whether the answer ends well decides what it is
