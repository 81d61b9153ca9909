"""Data files as a step writes them, for tests and benches: line by line, plain or compressed, final name at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from config import CompressionConfig
from tasks.shared.files.compression import CompressedSink
from tasks.shared.files.intake import FileFacts
from tasks.shared.files.names import data_file_name
from tasks.shared.files.out_file import PartFile


class NdjsonWriter:
    """Writes ``<directory>/<base>.ndjson``, or ``.ndjson.zst`` when compression is enabled.

    The file is called ``….part`` until ``commit`` has it on the disk and renames it; leaving the context without a
    commit, or ``abort``, removes it. Mode 0600. Not thread-safe. Raises ``StorageError`` (``disk-full`` …).
    """

    def __init__(self, directory: Path, base: str, compression: CompressionConfig) -> None:
        self.lines = 0
        self.bytes = 0
        self._part = PartFile(directory / data_file_name(base, compressed=compression.enabled), hashed=True)
        self._zst = CompressedSink(self._part, compression.level) if compression.enabled else None

    @property
    def path(self) -> Path:
        """The final path."""
        return self._part.final

    def write_line(self, line: bytes) -> None:
        """Append one line, given without its line feed. A line feed inside would make it two: that is refused."""
        if b"\n" in line:
            raise ValueError("a line of NDJSON contains no line feed")
        self.lines += 1
        self.bytes += len(line) + 1
        sink = self._zst or self._part
        sink.write(line)
        sink.write(b"\n")

    def commit(self) -> FileFacts:
        """Finish the file and say what it holds. The SHA-256 is that of the file as stored."""
        if self._zst is not None:
            self._zst.close()
        path = self._part.commit()
        return FileFacts(
            name=path.name,
            lines=self.lines,
            content_bytes=self.bytes,
            stored_bytes=self._part.size,
            sha256=self._part.sha256,
        )

    def abort(self) -> None:
        """Remove what was written. Safe after ``commit``, which it does not undo."""
        self._part.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.abort()
