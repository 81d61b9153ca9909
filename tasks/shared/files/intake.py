"""Taking a foreign file in: stored as it came, checked and counted on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

from config import CompressionConfig
from tasks.shared.errors import DataError
from tasks.shared.fhir.reading import LARGEST_RESOURCE
from tasks.shared.files.check import LineCheck
from tasks.shared.files.compression import CompressedSink, DecompressedStream, Source, is_compressed
from tasks.shared.files.facts import FileFacts
from tasks.shared.files.names import data_file_name
from tasks.shared.files.out_file import PartFile

_READ = 1 << 18


class Intake:
    """One foreign file on its way to ``<directory>/<base>.ndjson[.zst]``.

    The content stays as it is, byte for byte: line ends, blank lines, a byte order mark, a missing last line feed.
    With compression enabled plain data is compressed and zstd data is stored as it came (and decompressed in passing,
    for the check); without, everything is stored plain. What the data is, its first bytes say, not its name.

    ``source.read(size)`` gives the bytes, empty at the end. ``name`` stands in errors; ``resources``, ``kind`` and
    ``largest`` are those of ``LineCheck``, ``lines`` is how many a server counts in the file. ``run`` may be called
    again with a source that goes on where the one before broke off, as long as ``resumable``.

    Raises what ``LineCheck`` does, ``DataError`` ``source-incomplete``, ``zst-truncated`` and ``zst-corrupt``,
    ``StorageError``, and whatever the source raises.
    """

    def __init__(
        self,
        directory: Path,
        base: str,
        compression: CompressionConfig,
        *,
        name: str,
        resources: bool = False,
        kind: str | None = None,
        largest: int = LARGEST_RESOURCE,
        lines: int | None = None,
    ) -> None:
        self._directory = directory
        self._base = base
        self._compression = compression
        self._name = name
        self._check = LineCheck(name, resources=resources, kind=kind, source=True, largest=largest)
        self._lines = lines
        self._part: PartFile | None = None
        self._zst: CompressedSink | None = None
        self.plain = False

    @property
    def resumable(self) -> bool:
        """Whether the file on disk is stored uncompressed as it arrives, so that a broken transfer can go on."""
        return self.plain and self._zst is None and self._part is not None

    def run(self, source: Source) -> None:
        """Take in everything the source gives."""
        if self._part is None:
            source = self._begin(source)
        if self.plain:
            self._take_plain(source)
        else:
            self._take_zst(source)

    def commit(self, *, allow_empty: bool = True, record: Callable[[FileFacts], None] | None = None) -> FileFacts:
        """Check the last line, finish the file, give it its final name.

        Without ``allow_empty``, data without any line is a ``DataError`` ``empty-file``. ``record`` gets the facts just
        before the rename, so that whoever finds the final name later also finds its facts.
        """
        self._check.finish()
        if self._part is None:
            raise RuntimeError("commit before run")
        if not allow_empty and not self._check.lines:
            raise DataError(
                "empty-file",
                "there is not a single resource in this file",
                context=self._name,
                hint="an export that broke off looks like this; leave the file out if it is meant to be empty",
            )
        if self._lines is not None and self._check.lines != self._lines:
            raise DataError(
                "source-incomplete",
                f"the file has {'fewer' if self._check.lines < self._lines else 'more'} lines than the manifest states",
                context=self._name,
                hint="see the log of the server; continuing the job fetches the file again",
            )
        if self._zst is not None:
            self._zst.close()
        facts = FileFacts(
            name=self._part.final.name,
            lines=self._check.lines,
            resources=self._check.resources,
            content_bytes=self._check.bytes,
            stored_bytes=self._part.size,
            sha256=self._part.sha256,
            notes=self._check.notes or None,
        )
        if record is not None:
            record(facts)
        self._part.commit()
        return facts

    @property
    def lines(self) -> int:
        """Lines counted so far."""
        return self._check.lines

    def abort(self) -> None:
        """Remove what was written. Safe after ``commit``, which it does not undo."""
        if self._part is not None:
            self._part.abort()

    def _begin(self, source: Source) -> Source:
        head = b""
        while len(head) < 4 and (data := source.read(_READ)):
            head += data
        self.plain = not is_compressed(head)
        name = data_file_name(self._base, compressed=self._compression.enabled)
        if self.plain:
            # Before anything is on the disk: a login page is found here.
            self._check.feed(head)
        self._part = PartFile(self._directory / name, hashed=True)
        if self.plain and self._compression.enabled:
            self._zst = CompressedSink(self._part, self._compression.level)
        if self.plain:
            self._store(head)
            return source
        return _Replay(head, source)

    def _take_plain(self, source: Source) -> None:
        while data := source.read(_READ):
            self._check.feed(data)
            self._store(data)

    def _take_zst(self, source: Source) -> None:
        assert self._part is not None  # noqa: S101 - for the type checker
        keep = self._compression.enabled
        stream = DecompressedStream(source, self._name, tee=self._part.write if keep else None)
        try:
            buffer = bytearray(_READ)
            while count := stream.readinto(buffer):
                piece = bytes(memoryview(buffer)[:count])
                self._feed_decompressed(piece)
                if not keep:
                    self._store(piece)
        finally:
            stream.close()

    def _feed_decompressed(self, piece: bytes) -> None:
        try:
            self._check.feed(piece)
        except DataError as error:
            if error.reference not in {"not-json", "not-utf8"}:
                raise
            # A changed byte seldom breaks the decompression at once; the checksum, if there is one, comes last.
            hint = "the compressed file may be damaged (zstd -t tells); if it is not, mend this line"
            raise DataError(error.reference, error.message, context=error.context, hint=hint) from None

    def _store(self, data: bytes) -> None:
        sink = self._zst or self._part
        if sink is not None:
            sink.write(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.abort()


class _Replay:
    """A source with its first bytes put back."""

    def __init__(self, head: bytes, source: Source) -> None:
        self._head = head
        self._source = source

    def read(self, size: int) -> bytes:
        if self._head:
            head, self._head = self._head[:size], self._head[size:]
            return head
        return self._source.read(size)
