"""Files that are whole or absent: written as ``<name>.part``, forced to disk, then renamed.

The order is that of docs/decisions/06-file-is-the-unit.md.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from pathlib import Path
from typing import BinaryIO, Final, Self

import zstandard

from tasks.shared.errors import storage_errors

PART: Final = ".part"
"""Suffix of an unfinished file."""

LEVELS: Final = {"fastest": 1, "default": 3, "better": 7, "best": 11}
"""The names of ``compression.level``, as levels of zstd."""


def part_of(final: Path) -> Path:
    """Return the name of a file until it is complete."""
    return final.with_name(final.name + PART)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory outlive a power cut, where the file system can."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems cannot sync a directory and return one of these.
        if error.errno not in {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF}:
            raise
    finally:
        os.close(handle)


def publish(final: Path) -> None:
    """Give the finished part of ``final`` its name, for good. Raises ``StorageError``."""
    with storage_errors(final):
        part_of(final).replace(final)
        sync_directory(final.parent)


def write_whole(path: Path, content: bytes) -> None:
    """Write a small file (0600), which is whole or absent, also after a power cut. Raises ``StorageError``."""
    with PartFile(path) as part:
        part.write(content)
        part.sync()
        publish(path)


class _Hashed:
    """The bytes of the file on disk, counted and hashed on their way."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = 0
        self.hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        self.size += len(data)
        return self._file.write(data)


class PartFile:
    """A data file in the making (0600), compressed at ``level`` (a name of ``LEVELS``) if one is given. For one thread.

    ``sync`` ends writing and forces the content to disk; then ``size`` (bytes) and ``sha256`` (hex) are those of the
    stored file, and ``publish(final)`` gives it its name. Leaving the context without ``sync`` removes the part.
    Every method raises ``StorageError``.
    """

    def __init__(self, final: Path, level: str | None = None) -> None:
        self.final = final
        self.content = 0
        """Bytes written, before compression."""
        with storage_errors(final):
            final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part_of(final).unlink(missing_ok=True)
            self._file = open(os.open(part_of(final), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")  # noqa: PTH123, SIM115
        self._stored = _Hashed(self._file)
        self._zstd = None
        if level is not None:
            # threads=1: zstd compresses in a thread of its own, beside the thread that reads and checks.
            compressor = zstandard.ZstdCompressor(LEVELS[level], threads=1, write_checksum=True)
            self._zstd = compressor.stream_writer(self._stored, closefd=False)  # type: ignore[arg-type]

    @property
    def size(self) -> int:
        """Return the bytes of the stored file."""
        return self._stored.size

    @property
    def sha256(self) -> str:
        """Return the SHA-256 (hex) of the stored file."""
        return self._stored.hash.hexdigest()

    def write(self, data: bytes | memoryview) -> None:
        """Append ``data``."""
        self.content += len(data)
        with storage_errors(self.final):
            (self._zstd or self._stored).write(data)  # type: ignore[arg-type]

    def sync(self) -> None:
        """End the file and force it to disk."""
        with storage_errors(self.final):
            if self._zstd is not None:
                self._zstd.close()  # type: ignore[no-untyped-call]
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._file.closed:
            with contextlib.suppress(OSError):  # the error that led here is the one to report
                self._file.close()
            with contextlib.suppress(OSError):
                part_of(self.final).unlink(missing_ok=True)
