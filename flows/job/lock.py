"""The lock of a job: ``flock`` on ``<job>/.lock``, held by the process that runs the job, released however it ends."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO, ClassVar

from tasks.shared.errors import TerminalError, storage_errors

LOCK = ".lock"

PATIENCE = 1.0
"""Seconds to try: longer than a reader holds the lock (``is_held``), short for a person."""


class JobBusyError(TerminalError):
    """Another process runs the job."""

    exit_code = 4


class JobLock:
    """The exclusive lock on a job's directory; a process that holds it may take it again.

    A command takes the lock before it changes a job, and the flow that it runs in the same process takes it again.
    """

    held: ClassVar[set[Path]] = set()

    def __init__(self, directory: Path, *, patience: float = PATIENCE) -> None:
        self.path = directory.absolute() / LOCK
        self._patience = patience
        self._taken: ExitStack | None = None

    def __enter__(self) -> JobLock:
        """Take the lock, unless this process holds it. Raises ``JobBusyError`` and ``StorageError``."""
        if self.path in self.held:
            return self
        with storage_errors(self.path), ExitStack() as stack:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            handle = stack.enter_context(os.fdopen(descriptor, "r+b", buffering=0))
            self._take(handle)
            handle.truncate(0)
            handle.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
            self._taken = stack.pop_all()
        self.held.add(self.path)
        return self

    def __exit__(self, *exc: object) -> None:
        """Release the lock. The file stays: removing it would let two processes hold two locks."""
        if self._taken is not None:
            self.held.discard(self.path)
            self._taken.close()

    def _take(self, handle: IO[bytes]) -> None:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    holder = handle.read().decode(errors="replace") or "its name is not known"
                    raise JobBusyError(
                        "job-busy", f"the job is being run by another process ({holder})",
                        context=str(self.path.parent), hint="wait for it, or stop it with Ctrl-C there",
                    ) from None  # fmt: skip
                time.sleep(0.05)


def is_held(directory: Path) -> bool:
    """Return whether another process holds the job's lock."""
    if directory.absolute() / LOCK in JobLock.held:
        return False
    try:
        with (directory / LOCK).open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
