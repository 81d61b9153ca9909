"""How far the step is, by the sizes of its files on disk: those of their contents are not known beforehand."""

from __future__ import annotations

from collections.abc import Iterable

from tasks.pseudonymizer.outputs import Source


class Extent:
    """The fraction of ``sources`` that is done, files that an earlier run finished included."""

    def __init__(self, sources: Iterable[Source]) -> None:
        sources = list(sources)
        self._total = sum(source.stored for source in sources)
        self._done = sum(source.stored for source in sources if source.finished)
        self._ratio = 10.0  # content to stored size of compressed files, until one has been read

    def within(self, source: Source) -> float:
        """The fraction (0…1) done when all that was counted of ``source`` is."""
        ratio = self._ratio if source.path.suffix.lower() == ".zst" else 1.0
        part = min(source.stored, source.counts["bytes_in"] / ratio)
        return min(1.0, (self._done + part) / self._total) if self._total else 1.0

    def end_of(self, source: Source) -> float:
        """The fraction (0…1) done after the whole of ``source``."""
        self._done += source.stored
        if source.path.suffix.lower() == ".zst" and source.stored:
            self._ratio = max(1.0, source.counts["bytes_in"] / source.stored)
        return min(1.0, self._done / self._total) if self._total else 1.0
