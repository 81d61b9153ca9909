"""How far a step is, by the sizes of its files on disk: what compressed files hold is not known beforehand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tasks.shared.errors import storage_error
from tasks.shared.files.names import ZST

_USUAL_RATIO: Final = 10.0
"""Content to stored size of compressed files, until one has been read."""


class Course:
    """Fractions (0…1) of the work on ``files``, which are worked on one after the other."""

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

    def within(self, path: Path, content: int) -> float:
        """After ``content`` bytes of a file."""
        ratio = self._ratio if path.suffix.lower() == ZST else 1.0
        return (self._done + min(self._stored[path], content / ratio)) / self._total

    def end_of(self, path: Path, content: int) -> float:
        """After a whole file, whose content has that many bytes."""
        self._done += self._stored[path]
        if path.suffix.lower() == ZST and content:
            self._ratio = max(1.0, content / self._stored[path])
        return min(1.0, self._done / self._total)
