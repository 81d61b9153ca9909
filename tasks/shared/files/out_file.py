"""Writing of output files: private, complete or cut to the known part.

An ``OutFile`` is written in one run, or continued after its first bytes in another. A ``PartFile`` is named
``<name>.part`` until it is complete and on the disk (``4-product.md`` §4: "an existing
final file is complete"). A ``Spool`` has no name and holds data
too large for memory.

All are 0600. Errors of the file system are raised as ``StorageError`` (including ``disk-full``).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import tempfile
from pathlib import Path
from typing import BinaryIO, Final, Self

from tasks.shared.errors import StorageError, storage_error, storage_errors

PART: Final = ".part"
"""Suffix of an unfinished file."""

_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC
_BLOCK: Final = 1 << 16


def part_of(final: Path) -> Path:
    """Return the name of a file until it is complete."""
    return final.with_name(final.name + PART)


def publish(*names: tuple[Path, Path]) -> None:
    """Rename finished files durably, each from its first name to its second."""
    for part, final in names:
        with storage_errors(final):
            part.replace(final)
    for directory in {final.parent for _, final in names}:
        sync_directory(directory)


def sync_directory(directory: Path) -> None:
    """Make renames in this directory outlive a power cut, where the platform can."""
    with storage_errors(directory):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            # Some network and FUSE file systems cannot sync a directory and return one of these.
            if error.errno not in {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF}:
                raise
        finally:
            os.close(handle)


def write_all(handle: int, data: bytes | memoryview) -> None:
    """Write all of ``data`` or raise ``OSError``: on a disk that fills up, a first write can be partial."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


class OutFile:
    """The file at ``path``, new, or cut to its first ``keep`` bytes and continued after them.

    With ``keep``, the file must have as many bytes. ``size`` is its size in bytes. Written data remain after
    closing. Errors name the file ``named``. For one thread.
    """

    _handle = -1

    def __init__(self, path: Path, keep: int = 0, *, named: Path | None = None) -> None:
        self.path = path
        self.size = 0
        self._named = named or path
        try:
            with storage_errors(self._named):
                self._handle = self._open(keep)
            self.cut(self._intact_size(keep))
        except StorageError:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        """Return whether the file is open."""
        return self._handle >= 0

    def write(self, data: bytes | memoryview) -> int:
        """Append ``data``, all of it."""
        try:
            write_all(self._handle, data)
        except OSError as error:
            raise storage_error(error, self._named) from None
        self.size += len(data)
        return len(data)

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from ``start`` to before ``end``, or to the end of the file."""
        pieces: list[bytes] = []
        with storage_errors(self._named):
            while start < end and (data := os.pread(self._handle, end - start, start)):
                pieces.append(data)
                start += len(data)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def cut(self, size: int) -> None:
        """Cut the file to its first ``size`` bytes, and continue there."""
        with storage_errors(self._named):
            os.ftruncate(self._handle, size)
            os.lseek(self._handle, size, os.SEEK_SET)
        self.size = size

    def sync(self) -> None:
        """Force written data to the disk."""
        with storage_errors(self._named):
            os.fsync(self._handle)

    def opened(self) -> BinaryIO:
        """Return a file object for seeking; ``size`` does not include its writes."""
        return os.fdopen(os.dup(self._handle), "r+b")

    def close(self) -> None:
        """Close the file and keep it; a second call does nothing."""
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            with storage_errors(self._named):
                os.close(handle)

    def _open(self, keep: int) -> int:
        return os.open(self.path, _FLAGS if keep else _FLAGS | os.O_CREAT | os.O_TRUNC, 0o600)

    def _intact_size(self, keep: int) -> int:
        return keep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class PartFile(OutFile):
    """A file in the making: ``<final>.part``, in a private directory. ``hashed`` has it hashed while it is written.

    ``commit`` makes it durable and gives it its final name, ``abort`` removes it. Leaving the context without a
    commit aborts.
    """

    def __init__(self, final: Path, keep: int = 0, *, hashed: bool = False) -> None:
        self.final = final
        self._hash = hashlib.sha256() if hashed else None
        with storage_errors(final):
            final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        super().__init__(part_of(final), keep, named=final)

    @property
    def sha256(self) -> str:
        """SHA-256 (hex) of the bytes written so far, of a file that is hashed."""
        assert self._hash is not None  # noqa: S101 - for the type checker
        return self._hash.hexdigest()

    def write(self, data: bytes | memoryview) -> int:
        """Append ``data``, all of it."""
        if self._hash is not None:
            self._hash.update(data)
        return super().write(data)

    def commit(self) -> Path:
        """Sync the file, give it its final name, sync the directory."""
        try:
            self.sync()
            self.publish()
        except StorageError:
            self.abort()
            raise
        return self.final

    def publish(self) -> Path:
        """Give the file, whose content is on the disk, its final name."""
        self.close()
        publish((self.path, self.final))
        return self.final

    def abort(self) -> None:
        """Close and remove the part. Safe to call at any time, also twice."""
        with contextlib.suppress(StorageError):  # the error that led here is the one to report
            self.close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def __exit__(self, *exc: object) -> None:
        if self.is_open:
            self.abort()


def write_file(path: Path, content: bytes) -> Path:
    """Write a small file atomically."""
    with PartFile(path) as part:
        part.write(content)
        return part.commit()


class Spool(OutFile):
    """Bytes in a nameless temporary file in ``directory``: written in order, read anywhere, gone when closed."""

    def __init__(self, directory: Path) -> None:
        with storage_errors(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        super().__init__(directory)

    def _open(self, keep: int) -> int:
        with tempfile.TemporaryFile(dir=self.path, buffering=0) as file:
            return os.dup(file.fileno())

    def __del__(self) -> None:
        # A file without a name has no other user: its space is freed with the last reference.
        self.close()


def open_lock(path: Path) -> io.FileIO:
    """Open a file for ``flock``; it is made if it is missing (0600). Raises ``OSError``."""
    return os.fdopen(os.open(path, _FLAGS | os.O_CREAT, 0o600), "r+b", buffering=0)
