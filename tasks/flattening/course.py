"""How far the reading is, by the sizes of files on disk: what compressed files hold is not known beforehand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tasks.shared.ndjson import ZST, storage_error

_USUAL_RATIO: Final = 10.0
"""Content to stored size of compressed files, until one has been read."""


class Course:
    """Fractions (0…1) of the work on ``files``, which are read one after the other. Raises ``StorageError``."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._stored: dict[Path, int] = {}
        for path in files:
            try:
                self._stored[path] = max(1, path.stat().st_size)
            except OSError as error:
                raise storage_error(error, path) from None
        self._total = sum(self._stored.values())
        self._done = 0
        self._ratio = _USUAL_RATIO

    def fraction(self, path: Path, content: int, *, whole: bool) -> float:
        """After ``content`` bytes of a file, or after the ``whole`` of it, which has that many."""
        stored = self._stored[path]
        compressed = path.suffix.lower() == ZST
        if not whole:
            return (self._done + min(stored, content / (self._ratio if compressed else 1.0))) / self._total
        self._done += stored
        if compressed and content:
            self._ratio = max(1.0, content / stored)
        return min(1.0, self._done / self._total)
