"""How a data file comes to exist under its final name.

A data file is written as ``<name>.part`` beside its place and renamed when it is complete and on the disk
(``architecture.md`` rule 6, ``4-product.md`` §4: "an existing final file is complete").
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from tasks.shared.errors import storage_error

PART = ".part"
"""What the name of an unfinished file ends with."""


def sync_directory(directory: Path) -> None:
    """Make renames in this directory outlive a power cut, where the platform can."""
    try:
        handle = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise storage_error(error, directory) from None
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network and FUSE file systems cannot sync a directory; they say so with one of these.
        if error.errno not in {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF}:
            raise storage_error(error, directory) from None
    finally:
        os.close(handle)


class PartFile:
    """A file in the making: ``<final>.part``, mode 0600, hashed and counted while it is written.

    ``commit`` makes it durable and gives it its final name, ``abort`` removes it. Leaving the context without a
    commit aborts. Errors of the file system come out as ``StorageError`` (``disk-full`` among them).
    """

    def __init__(self, final: Path) -> None:
        self.final = final
        self.path = final.with_name(final.name + PART)
        self.bytes = 0
        self._hash = hashlib.sha256()
        try:
            final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A leftover of a killed run is replaced, never written into: it may have another owner or be a link.
            self.path.unlink(missing_ok=True)
            self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise storage_error(error, final) from None
        self._open = True

    @property
    def sha256(self) -> str:
        """SHA-256 (hex) of the bytes written so far."""
        return self._hash.hexdigest()

    def write(self, data: bytes | memoryview) -> int:
        """Append ``data``; all of it, or an error."""
        self._hash.update(data)
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._handle, view) :]
        except OSError as error:
            raise storage_error(error, self.final) from None
        self.bytes += len(data)
        return len(data)

    def commit(self) -> Path:
        """Sync the file, give it its final name, sync the directory."""
        try:
            os.fsync(self._handle)
            self._close()
            self.path.replace(self.final)
        except OSError as error:
            self.abort()
            raise storage_error(error, self.final) from None
        sync_directory(self.final.parent)
        return self.final

    def abort(self) -> None:
        """Close and remove the part. Safe to call at any time, also twice."""
        with contextlib.suppress(OSError):  # the error that led here is the one to report
            self._close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._open:
            self._open = False
            os.close(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open:
            self.abort()
