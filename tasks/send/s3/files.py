"""The files to upload as a store gets them, and the manifest that lists the objects in the bucket.

The files are only read. Of each the keys and the parts on their way out are made here.
"""

from __future__ import annotations

import hashlib
import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Final, Self

import msgspec

from tasks.send.comparison import InputComparison
from tasks.shared.blanked import blanked
from tasks.shared.errors import InputError, storage_errors
from tasks.shared.files.data_directory import is_ndjson_name
from tasks.shared.files.out_file import write_file

LONGEST_KEY: Final = 1024
"""Bytes of UTF-8 that S3 allows a key."""

_TYPES: Final = (
    (".zst", "application/zstd"),
    (".csv", "text/csv; charset=utf-8"),
    (".json", "application/json"),
)
_UNKNOWN: Final = "application/octet-stream"
_BUFFER: Final = 256 * 1024


def job_prefix(prefix: str | None, job_id: str) -> str:
    """Return the prefix of the keys of one job: ``[prefix/]<job id>/``. Slashes around the prefix are ignored."""
    front = (prefix or "").strip("/")
    return f"{front}/{job_id}/" if front else f"{job_id}/"


def object_key(prefix: str, name: str) -> str:
    """Return the key of the file ``name`` (its path below the input directory) under a job's prefix.

    Raises ``InputError`` (``s3-key-too-long``) for a key that no store takes.
    """
    key = prefix + name
    if len(key.encode()) > LONGEST_KEY:
        raise InputError(
            "s3-key-too-long",
            f"send: the object key of a file is longer than {LONGEST_KEY} bytes",
            context=name,
            hint="shorten services.send.s3.prefix or the name of the file",
        )
    return key


def content_type(name: str) -> str:
    """Return the ``Content-Type`` for a file name. Compressed NDJSON is a zstd file without ``Content-Encoding``.

    With one, a client would unpack on the way and find other bytes than ``sha256`` speaks of.
    """
    lower = name.lower()
    if is_ndjson_name(lower) and not lower.endswith(".zst"):
        return "application/fhir+ndjson"
    return next((kind for suffix, kind in _TYPES if lower.endswith(suffix)), _UNKNOWN)


class OpenFile:
    """A file of the input, open for reading by several threads. As a context manager it closes the file.

    Raises ``StorageError``, and ``DataError`` (``send-input-changed``) when it is not the file that was compared.
    """

    def __init__(self, compared: InputComparison, path: Path) -> None:
        entry = compared.entry(path)
        self.name, self.size, self.sha256 = compared.name(path), entry.size, entry.sha256
        self.path = path
        self._compared = compared
        with storage_errors(path):
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def read(self, count: int, offset: int) -> bytes:
        """Return ``count`` bytes from ``offset``, or the first of them; at least one."""
        with storage_errors(self.path):
            data = os.pread(self._handle, count, offset)
        if not data:
            raise self._compared.changed(self.path)
        return data

    def verify(self) -> None:
        """Raise an error if the file was changed after it was compared."""
        self._compared.verify(self.path, self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._handle)


class FileSection:
    """Some bytes of an open file: the file object that botocore measures and signs, and the ``Body`` of the request.

    It is as long as it was said to be: a file that has shrunk is an error, not a short body. ``check`` raises when the
    work is to end; it is called for every read.
    """

    def __init__(self, file: OpenFile, start: int, size: int, check: Callable[[], None]) -> None:
        self._file = file
        self._start = start
        self.length = size
        self._check = check
        self._at = 0

    @cached_property
    def md5(self) -> bytes:
        """The MD5 digest of all of it."""
        digest = hashlib.md5(usedforsecurity=False)
        for piece in self.pieces():
            digest.update(piece)
        return digest.digest()

    @cached_property
    def crc32(self) -> bytes:
        """The CRC-32 of all of it, as S3 writes it: big-endian."""
        value = 0
        for piece in self.pieces():
            value = zlib.crc32(piece, value)
        return value.to_bytes(4, "big")

    def tell(self) -> int:
        """Return the position of the next ``read``."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position, as any file object does."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.length}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, count: int | None = None) -> bytes:
        """Up to ``count`` bytes, all that are left without one; ``b""`` at the end."""
        left = max(0, self.length - self._at)
        wanted = left if count is None or count < 0 else min(count, left)
        if not wanted:
            return b""
        self._check()
        data = self._file.read(wanted, self._start + self._at)
        self._at += len(data)
        return data

    def pieces(self) -> Iterator[bytes]:
        """Yield the whole section from its start, in pieces."""
        self.seek(0)
        while piece := self.read(_BUFFER):
            yield piece


MANIFEST: Final = "upload_manifest.json"
"""What is in the bucket after the upload: a JSON list of ``{"key", "size", "sha256", "etag", "time"}`` in the order of
the keys. It stays on this machine: its times would change the bucket with every repeated send."""


class Uploaded(msgspec.Struct, frozen=True, order=True):
    """One object that is in the bucket: ``size`` in bytes, ``etag`` without quotes, ``time`` in UTC: when the object
    was uploaded, as far as the store or this program knows."""

    key: str
    size: int
    sha256: str
    etag: str
    time: str


def timestamp(moment: datetime) -> str:
    """Return a moment in the format of the manifest: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_manifest(directory: Path, objects: Iterable[Uploaded]) -> Path:
    """Write the manifest into ``directory`` (the job's ``send/``); it appears whole. Raises ``StorageError``."""
    text = msgspec.json.format(msgspec.json.encode(sorted(objects)), indent=2)
    return write_file(directory / MANIFEST, blanked(text) + b"\n")
