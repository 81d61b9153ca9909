"""The heartbeat of a job: a file in its directory that the holder of its lease writes every few seconds.

The second sign of life beside the lease (``lease.py``), for the hours when Prefect's API is away. Whoever
looks compares two contents, never two clocks. Only where there is a lease.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

HEARTBEAT = ".heartbeat"

_LENGTH = 64
"""Bytes of it, always: a full disk has room for what replaces it."""

_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK
"""No link is followed, and no pipe is waited for: what stands there then is no sign of life."""


class Heartbeat:
    """The heartbeat file of one job."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / HEARTBEAT
        self._beats = 0

    def beat(self, holder: str) -> None:
        """Write the next beat. Opened and closed each time: so NFS shows it to the others. Raises ``OSError``."""
        self._beats += 1
        content = f"{holder} {self._beats}".encode().ljust(_LENGTH - 1) + b"\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | _FLAGS, 0o600)
        try:
            os.pwrite(handle, content, 0)
        finally:
            os.close(handle)

    def read(self) -> bytes | None:
        """What it says now; ``None`` without one. Raises ``OSError`` when nobody can know."""
        try:
            handle = os.open(self.path, os.O_RDONLY | _FLAGS)
        except FileNotFoundError:
            return None
        with os.fdopen(handle, "rb") as file:
            return file.read(_LENGTH)

    def remove(self) -> None:
        """Remove it: the job was given back."""
        with suppress(OSError):
            self.path.unlink()


def last_beat(directory: Path) -> datetime | None:
    """When the heartbeat was written last, by the clock of the file system; ``None`` without one."""
    try:
        return datetime.fromtimestamp((directory / HEARTBEAT).stat().st_mtime, UTC)
    except OSError:
        return None


def beats(directory: Path, seconds: float) -> bool:
    """Whether it was written within the last ``seconds``, for those who only show. By the file system's clock alone.

    A time to come is none: that clock was set back, and who lives writes again within seconds.
    """
    try:
        written = (directory / HEARTBEAT).lstat().st_mtime
    except OSError:
        return False
    try:
        with tempfile.TemporaryFile(dir=directory) as fresh:
            now = os.fstat(fresh.fileno()).st_mtime
    except OSError:
        now = time.time()
    return abs(now - written) < seconds
