"""A private file that is written in several runs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tasks.shared.errors import storage_error


class GrowingFile:
    """The file at ``path``, mode 0600, opened to go on behind its first ``size`` bytes; what is behind them is cut off.

    What is written stays there for another run. Raises ``StorageError``.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        self.path = path
        flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            if not size:
                # A foreign leftover is replaced, never written into: it may have another owner or be a link.
                path.unlink(missing_ok=True)
                flags |= os.O_CREAT | os.O_EXCL
            self._handle = os.open(path, flags, 0o600)
            try:
                os.ftruncate(self._handle, size)
                os.lseek(self._handle, size, os.SEEK_SET)
            except OSError:
                self.close()
                raise
        except OSError as error:
            raise storage_error(error, path) from None

    def write(self, data: bytes) -> None:
        """Append ``data``, all of it."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._handle, view) :]
        except OSError as error:
            raise storage_error(error, self.path) from None

    def finish(self) -> None:
        """Force what was written to the disk, and close the file."""
        try:
            os.fsync(self._handle)
        except OSError as error:
            raise storage_error(error, self.path) from None
        self.close()

    def close(self) -> None:
        """Close the file as it is; a second call does nothing."""
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            os.close(handle)


def size_of(path: Path) -> int:
    """Bytes of a regular file; -1 when there is none. Raises ``StorageError``."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return -1
    except OSError as error:
        raise storage_error(error, path) from None
    return status.st_size if stat.S_ISREG(status.st_mode) else -1
