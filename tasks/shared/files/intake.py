"""Store and check a foreign file in one pass, so that an import holds only NDJSON of FHIR resources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Self

from config import CompressionConfig
from tasks.shared.files.data_directory import data_file_name
from tasks.shared.files.line_check import LineCheck
from tasks.shared.files.part_file import PartFile
from tasks.shared.files.zstd import decompressed, is_zstd


class Intake:
    """One foreign file, stored as ``<directory>/<base>.ndjson[.zst]``. Its content is not changed.

    With compression, plain data are compressed and zstd data are stored as received; without, everything is stored
    plain. The first bytes show whether data are zstd. ``check`` has the counts; ``FileWork.finish`` takes ``part``.
    Errors call the file ``name``; ``most`` is the limit of a line in bytes. Leaving the context without a finished part
    removes it. Raises what ``LineCheck``, ``decompressed`` and ``PartFile`` raise, and what the source raises.
    """

    def __init__(self, directory: Path, base: str, compression: CompressionConfig, *, name: str, most: int) -> None:
        self.check = LineCheck(name, most)
        self.taken = 0
        """Bytes received."""
        self._compression = compression
        self._name = name
        self._final = directory / data_file_name(base, compressed=compression.enabled)
        self._part: PartFile | None = None

    @property
    def part(self) -> PartFile:
        """Return the stored file, before it gets its final name."""
        assert self._part is not None  # noqa: S101 - ``run`` comes first
        return self._part

    def run(self, source: Iterable[bytes]) -> None:
        """Store and check the whole source."""
        incoming = self._counted(source)
        head = b""
        while len(head) < 4 and (piece := next(incoming, b"")):
            head += piece
        whole = chain((head,), incoming)
        as_it_came = is_zstd(head) or not self._compression.enabled
        self._part = PartFile(self._final, None if as_it_came else self._compression.level)
        if is_zstd(head) and self._compression.enabled:
            for piece in decompressed(self._stored(whole), self._name):
                self.check.feed(piece)
        else:
            for piece in decompressed(whole, self._name) if is_zstd(head) else whole:
                self.check.feed(piece)
                self.part.write(piece)
        self.check.finish()

    def _counted(self, source: Iterable[bytes]) -> Iterator[bytes]:
        for piece in source:
            self.taken += len(piece)
            yield piece

    def _stored(self, source: Iterable[bytes]) -> Iterator[bytes]:
        for piece in source:
            self.part.write(piece)
            yield piece

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._part is not None:
            self._part.__exit__(*exc)
