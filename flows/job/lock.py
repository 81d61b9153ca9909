"""The lock of a job: ``flock`` on ``<job>/.lock``, held by the process that runs the job, released however it ends."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path
from typing import IO, ClassVar

from tasks.shared.errors import TerminalError, storage_errors

LOCK = ".lock"

PATIENCE = 1.0
"""Seconds to try: longer than a reader holds the lock (``is_held``), short for a person."""


def _opened(path: Path) -> IO[bytes]:
    """Open the file of a lock, which is made if it is missing (0600)."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", buffering=0)


class JobBusyError(TerminalError):
    """Another process runs the job (exit code 4)."""

    exit_code = 4


class JobLock:
    """The exclusive lock on a job's directory; a process that holds it may take it again.

    A command takes the lock before it changes a job, and the flow that it runs in the same process takes it again.
    """

    held: ClassVar[set[Path]] = set()

    def __init__(self, directory: Path, *, patience: float = PATIENCE) -> None:
        self.path = directory.absolute() / LOCK
        self._patience = patience
        self._handle: IO[bytes] | None = None

    def __enter__(self) -> JobLock:
        """Take the lock, unless this process holds it.

        Raises:
            JobBusyError: another process has it; names its process id and host.
            StorageError: its file cannot be written.
        """
        if self.path not in self.held:
            with storage_errors(self.path):
                handle = _opened(self.path)
                try:
                    self._take(handle)
                    handle.truncate(0)
                    handle.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
                except BaseException:
                    handle.close()
                    raise
            self._handle = handle
            self.held.add(self.path)
        return self

    def __exit__(self, *exc: object) -> None:
        """Release the lock. The file stays: removing it would let two processes hold two locks."""
        if self._handle is not None:
            self.held.discard(self.path)
            self._handle.close()

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
