"""Intake of a foreign file: stored as received, checked and counted on the way, and recorded once complete."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from config import CompressionConfig
from tasks.shared.errors import DataError, storage_errors
from tasks.shared.fhir.reading import LARGEST_RESOURCE
from tasks.shared.fhir.sources import SourceNotes
from tasks.shared.files.check import LineCheck, check_file
from tasks.shared.files.compression import ByteReader, CompressedSink, DecompressedStream, is_compressed
from tasks.shared.files.data_directory import data_file_name
from tasks.shared.files.out_file import AppendFile, PartFile
from tasks.shared.stop import Stop

_READ = 1 << 18


class FileFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finished data file: its name, lines that are resources or Bundles, and sizes in bytes.

    ``content_bytes`` is the size uncompressed, ``stored_bytes`` and ``sha256`` (hex) are those of the file on disk.
    ``resources`` are those in the lines, those of a Bundle one by one.
    ``notes`` are signs that its source is incomplete.
    ``bytes_in`` are the bytes read (from a disk or a network). ``source`` names the origin for a person, and
    ``source_state`` lets an importer detect that the source changed since.
    """

    name: str
    lines: int
    content_bytes: int
    stored_bytes: int
    sha256: str
    resources: int
    bytes_in: int = 0
    source: str = ""
    source_state: str = ""
    notes: SourceNotes | None = None


def facts_of(path: Path, stop: Stop, *, largest: int = LARGEST_RESOURCE) -> FileFacts:
    """Return the facts of a data file that is already there, by reading (and checking) it once; see ``check_file``."""
    check = check_file(path, stop, source=True, largest=largest)
    with storage_errors(path), path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = os.fstat(file.fileno()).st_size
    return FileFacts(
        name=path.name,
        lines=check.lines,
        resources=check.resources,
        content_bytes=check.bytes,
        stored_bytes=size,
        sha256=digest,
        bytes_in=size,
        notes=check.notes or None,
    )


class Intake:
    """One foreign file on its way to ``<directory>/<base>.ndjson[.zst]``.

    The content stays as it is, byte for byte: line ends, blank lines, a byte order mark, a missing last line feed.
    With compression enabled plain data is compressed and zstd data is stored as it came (and decompressed in passing,
    for the check); without, everything is stored plain. The first bytes decide the format, not the name.

    ``source.read(size)`` gives the bytes, empty at the end. ``name`` is used in errors; ``resources``, ``kind`` and
    ``largest`` are those of ``LineCheck``, ``lines`` is how many a server counts in the file. ``run`` may be called
    again with a source that continues where the one before broke off, as long as ``resumable``.

    Raises the errors of ``LineCheck``, ``DataError`` ``source-incomplete``, ``zst-truncated`` and ``zst-corrupt``,
    ``StorageError``, and the errors of the source.
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
        """Return whether the file is stored uncompressed as it arrives, so that a broken transfer can continue."""
        return self.plain and self._zst is None and self._part is not None

    @property
    def content_bytes(self) -> int:
        """Return the size so far of the content, uncompressed."""
        return self._check.bytes

    def run(self, source: ByteReader) -> None:
        """Read the source to its end."""
        head = self._begin(source) if self._part is None else b""
        if self.plain:
            self._take_plain(source)
        else:
            self._take_zst(source, head)

    def commit(self, *, allow_empty: bool = True, record: Callable[[FileFacts], None] | None = None) -> FileFacts:
        """Check the last line, finish the file, give it its final name.

        Without ``allow_empty``, data without any line is a ``DataError`` ``empty-file``. ``record`` gets the facts just
        before the rename, so that every file with its final name has its facts.
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

    def abort(self) -> None:
        """Remove the unfinished file. Safe after ``commit``, which it does not undo."""
        if self._part is not None:
            self._part.abort()

    def _begin(self, source: ByteReader) -> bytes:
        """Detect the format of the data; return its first bytes."""
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
        return head

    def _take_plain(self, source: ByteReader) -> None:
        while data := source.read(_READ):
            self._check.feed(data)
            self._store(data)

    def _take_zst(self, source: ByteReader, head: bytes) -> None:
        assert self._part is not None  # noqa: S101 - for the type checker
        keep = self._compression.enabled
        stream = DecompressedStream(source, self._name, head=head, tee=self._part.write if keep else None)
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
            # A changed byte seldom breaks the decompression at once; the optional checksum comes last.
            hint = "the compressed file may be damaged (check with zstd -t); if not, correct this line"
            raise DataError(error.reference, error.message, context=error.context, hint=hint) from None

    def _store(self, data: bytes) -> None:
        sink = self._zst or self._part
        if sink is not None:
            sink.write(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.abort()


class FileLedger:
    """Append-only NDJSON with the facts of every finished file of one step instance.

    A file is entered just before its rename: every file with a final name has an entry. An entry without the file, or
    with another size than the file, is ignored. The last entry of a name counts; a torn line is ignored.
    Thread-safe.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, FileFacts] = {}
        self._load()

    def get(self, path: Path) -> FileFacts | None:
        """Return the facts of this file, if they were recorded and its size still agrees."""
        facts = self._known.get(path.name)
        with storage_errors(path):
            return facts if facts is not None and path.stat().st_size == facts.stored_bytes else None

    def add(self, facts: FileFacts) -> None:
        """Record a finished file."""
        line = msgspec.json.encode(facts) + b"\n"
        with self._lock:
            with storage_errors(self._path):
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with AppendFile(self._path) as file:
                file.append(line)
            self._known[facts.name] = facts

    def _load(self) -> None:
        with storage_errors(self._path):
            data = self._path.read_bytes() if self._path.exists() else b""
        for line in data.splitlines():
            try:
                facts = msgspec.json.decode(line, type=FileFacts)
            except msgspec.DecodeError:
                continue  # torn by a kill, before the rename that it was to announce
            self._known[facts.name] = facts
