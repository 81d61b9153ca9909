"""A data file that a new process continues after a kill, with the same bytes as without the kill.

The file is ``<base>.ndjson[.zst].part`` until it is complete. At the first line end after every ``every`` bytes of
content comes a *cut*: the zstd frame ends, the bytes are forced to the disk, and ``end_line`` returns the
``Position``, which the caller stores (in a ledger). A new writer with this position truncates the part to it and
appends. The cuts depend on the content only, so an interruption does not change the file.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from config import CompressionConfig
from tasks.shared.files.compression import CompressedSink
from tasks.shared.files.data_directory import data_file_name
from tasks.shared.files.out_file import PartFile, part_of, size_of

CUT_EVERY: Final = 16 << 20
"""Bytes of content between two cuts: the most that a kill costs, and a frame large enough to compress well."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two lines: ``lines`` and bytes of ``content`` before it, and the ``stored`` bytes they take."""

    lines: int = 0
    content: int = 0
    stored: int = 0


BEGIN: Final = Position()


class ResumableWriter:
    """Writes ``<directory>/<base>.ndjson``, or ``.ndjson.zst`` when compression is enabled, from a ``Position`` on.

    ``resumed`` is where it really begins: at ``BEGIN`` if the part is gone or shorter than the position (it was
    written in the other form, or removed). A line may be written in pieces; ``end_line`` ends it.
    ``finish`` and ``publish`` complete the file; leaving the context without them keeps the part for another run.
    Mode 0600. For one thread. Raises ``StorageError`` (``disk-full`` …).
    """

    def __init__(
        self,
        directory: Path,
        base: str,
        compression: CompressionConfig,
        *,
        resume: Position = BEGIN,
        every: int = CUT_EVERY,
    ) -> None:
        self._compression = compression
        self._every = every
        final = directory / data_file_name(base, compressed=compression.enabled)
        keep = resume.stored if size_of(part_of(final)) >= resume.stored else 0
        self._file = PartFile(final, keep)
        self.resumed = resume if keep == resume.stored else BEGIN
        self._lines = self.resumed.lines
        self._content = self.resumed.content
        self._cut = self.resumed
        self._zst: CompressedSink | None = None

    @property
    def path(self) -> Path:
        """Return the final path."""
        return self._file.final

    def write(self, data: bytes | memoryview) -> None:
        """Append a piece of a line. It must hold no line feed: the caller has looked."""
        if self._compression.enabled and self._zst is None:
            self._zst = CompressedSink(self._file, self._compression.level)
        (self._zst or self._file).write(data)
        self._content += len(data)

    def end_line(self) -> Position | None:
        """End the line; the position when this was the place for a cut. It is on the disk then."""
        self.write(b"\n")
        self._lines += 1
        return self._make_cut() if self._content - self._cut.content >= self._every else None

    def suspend(self) -> Position:
        """Up to where the part is good for another run, on the disk. Only after a whole line; nothing is written
        after it.
        """
        # A frame ends only where it would have ended anyway, so of compressed files the last cut counts.
        return self._cut if self._compression.enabled else self._make_cut()

    def finish(self) -> Position:
        """Force the complete content to the disk. The file still has its ``.part`` name."""
        return self._make_cut()

    def publish(self) -> Path:
        """Give the finished file its final name."""
        self.close()
        return self._file.publish()

    def close(self) -> None:
        """Close the part and keep it; a second call does nothing."""
        try:
            if self._zst is not None:
                zst, self._zst = self._zst, None
                zst.close()  # ends the frame after the last cut, where another run truncates
        finally:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self.close()
        else:
            with contextlib.suppress(Exception):  # the error that led here is the one to report
                self.close()

    def _make_cut(self) -> Position:
        if self._zst is not None:
            zst, self._zst = self._zst, None
            zst.close()
        elif self._compression.enabled and not self._content:
            CompressedSink(self._file, self._compression.level).close()  # no content is an empty frame, not no file
        self._file.sync()
        self._cut = Position(self._lines, self._content, self._file.size)
        return self._cut
