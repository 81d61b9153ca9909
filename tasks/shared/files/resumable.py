"""A data file that a killed process goes on writing where it stood, byte for byte as if nothing had happened.

The file is ``<base>.ndjson[.zst].part`` until it is complete. At the first line end after every ``every`` bytes of
content comes a *cut*: the zstd frame ends, the bytes are forced to the disk, and ``end_line`` hands out the
``Position``, which the caller remembers (in a ledger). A new writer that is given the position truncates the part to it
and appends. Where the cuts are depends on the content only, so interrupted or not, the file comes out the same.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from config import CompressionConfig
from tasks.shared.errors import storage_error
from tasks.shared.files.compression import CompressedSink
from tasks.shared.files.names import data_file_name
from tasks.shared.files.out_file import PART, sync_directory

CUT_EVERY: Final = 16 << 20
"""Bytes of content between two cuts: what a kill costs at most, and a frame large enough to compress well."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two lines: ``lines`` and bytes of ``content`` before it, and the ``stored`` bytes they take."""

    lines: int = 0
    content: int = 0
    stored: int = 0


BEGIN: Final = Position()


class ResumableWriter:
    """Writes ``<directory>/<base>.ndjson``, or ``.ndjson.zst`` when compression is enabled, from a ``Position`` on.

    ``resumed`` says where it really begins: at ``BEGIN`` when the part is gone or shorter than the position (it was
    written in the other form, or somebody removed it). A line may be written in pieces; ``end_line`` ends it.
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
        self._file = _Part(directory / data_file_name(base, compressed=compression.enabled), resume.stored)
        self.resumed = resume if self._file.stored == resume.stored else BEGIN
        self._lines = self.resumed.lines
        self._content = self.resumed.content
        self._cut = self.resumed
        self._zst: CompressedSink | None = None

    @property
    def path(self) -> Path:
        """The final path."""
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
        """The content is complete: force it to the disk. The file still has its ``.part`` name."""
        return self._make_cut()

    def publish(self) -> Path:
        """Give the finished file its final name."""
        self.close()
        try:
            self._file.path.replace(self._file.final)
        except OSError as error:
            raise storage_error(error, self._file.final) from None
        sync_directory(self._file.final.parent)
        return self._file.final

    def close(self) -> None:
        """Close the part and leave it there; a second call does nothing."""
        try:
            if self._zst is not None:
                zst, self._zst = self._zst, None
                zst.close()  # ends the frame behind the last cut, where another run truncates
        finally:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        self._cut = Position(self._lines, self._content, self._file.stored)
        return self._cut


class _Part:
    """``<final>.part``, open for appending after its first ``keep`` bytes, or anew when it does not have them."""

    def __init__(self, final: Path, keep: int) -> None:
        self.final = final
        self.path = final.with_name(final.name + PART)
        self.stored = 0
        self._handle = -1
        try:
            final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if keep:
                self._reopen(keep)
            if self._handle < 0:
                # A leftover is replaced, never written into: it may have another owner or be a link.
                self.path.unlink(missing_ok=True)
                self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self.close()
            raise storage_error(error, final) from None

    def write(self, data: bytes | memoryview) -> int:
        """Append ``data``; all of it, or an error."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._handle, view) :]
        except OSError as error:
            raise storage_error(error, self.final) from None
        self.stored += len(data)
        return len(data)

    def sync(self) -> None:
        """Force what was written to the disk."""
        try:
            os.fsync(self._handle)
        except OSError as error:
            raise storage_error(error, self.final) from None

    def close(self) -> None:
        """Close the file."""
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            os.close(handle)

    def _reopen(self, keep: int) -> None:
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_nlink != 1:
            os.close(handle)
            return
        if facts.st_size < keep:
            os.close(handle)
            return
        self._handle = handle
        os.ftruncate(handle, keep)
        os.lseek(handle, 0, os.SEEK_END)
        self.stored = keep
