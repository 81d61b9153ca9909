"""Numbers that are too many for memory, on disk, and looked at in rounds."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tasks.shared.files.out_file import Spool

HELD: Final = 1 << 15
"""Rows in memory at once."""
_ROUND: Final = 1 << 18
"""Different numbers that a round may hold."""


class Spill:
    """Rows of a 64-bit number (a keyed hash) and 32-bit ones, in nameless files (0600) that no kill leaves behind.

    ``rounds`` gives them back in parts: a number is in one part only, and a part has about 260,000 rows, so that
    whoever looks at one part needs 50 MB, whatever was spilled. 12 to 16 bytes a row on disk.
    """

    def __init__(self, directory: Path, more: int = 1) -> None:
        self._directory = directory
        self.hashes = array("q")
        self.more = tuple(array("I") for _ in range(more))
        self._spools: list[Spool] | None = None
        self.size = 0

    def settle(self) -> None:
        """Write what is held if it is much; to be called now and then."""
        if len(self.hashes) < HELD:
            return
        if self._spools is None:
            self._spools = [Spool(self._directory) for _ in (self.hashes, *self.more)]
        self.size += len(self.hashes)
        for spool, column in zip(self._spools, (self.hashes, *self.more), strict=True):
            spool.write(memoryview(column).cast("B"))
            del column[:]

    def __len__(self) -> int:
        return self.size + len(self.hashes)

    def parts(self) -> int:
        """Return the number of rounds needed."""
        return 1 + len(self) // _ROUND

    def rows(self, part: int = 0, parts: int = 1) -> Iterator[tuple[int, ...]]:
        """Yield the rows of one part in their original order."""
        for hashes, *more in self._pieces():
            if parts == 1:
                yield from zip(hashes, *more, strict=True)
            else:
                for row in zip(hashes, *more, strict=True):
                    if row[0] % parts == part:
                        yield row

    def numbers(self, part: int = 0, parts: int = 1) -> Iterator[int]:
        """Yield the first column of one part."""
        for hashes, *_ in self._pieces():
            yield from hashes if parts == 1 else (one for one in hashes if one % parts == part)

    def _pieces(self) -> Iterator[tuple[array[int], ...]]:
        if self._spools is not None:
            widths = [column.itemsize for column in (self.hashes, *self.more)]
            for first in range(0, self.size, HELD):
                last = min(first + HELD, self.size)
                yield tuple(
                    array("q" if number == 0 else "I", spool.read(first * width, last * width))
                    for number, (spool, width) in enumerate(zip(self._spools, widths, strict=True))
                )
        yield (self.hashes, *self.more)

    def close(self) -> None:
        """Give the space back. Safe to call twice."""
        for spool in self._spools or ():
            spool.close()
