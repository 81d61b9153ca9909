"""The lock of a job: held with ``flock`` by the process that runs it, released by the kernel however it ends."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path
from typing import IO, ClassVar, Self

from tasks.shared.errors import TerminalError

PATIENCE = 1.0
"""Seconds to try: long enough to outlast a reader's glance (``is_held``), short for a person."""


class JobBusyError(TerminalError):
    """Another process runs the job (exit code 4)."""

    exit_code = 4


class JobLock:
    """The exclusive lock on ``<job directory>/.lock``; a process that has it may take it again.

    A command takes it before it touches the job's state, and the flow it runs in the same process takes it once more.
    """

    held: ClassVar[set[Path]] = set()

    def __init__(self, directory: Path) -> None:
        self.path = directory.absolute() / ".lock"
        self._handle: IO[str] | None = None

    def acquire(self) -> Self:
        """Take the lock.

        Raises:
            JobBusyError: another process has it; names its process id and host.
        """
        if self.path in self.held:
            return self
        handle = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600), "r+")
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    holder = handle.read().strip() or "unknown"
                    handle.close()
                    raise JobBusyError(
                        "job-busy", f"the job is being run by another process ({holder})",
                        context=str(self.path.parent), hint="wait for it, or stop it with Ctrl-C there",
                    ) from None  # fmt: skip
                time.sleep(0.05)
        handle.seek(0)
        handle.truncate()
        handle.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        handle.flush()
        self._handle = handle
        self.held.add(self.path)
        return self

    def release(self) -> None:
        """Give the lock back. The file stays: removing it would let two processes hold two locks."""
        if self._handle is not None:
            self.held.discard(self.path)
            self._handle.close()
            self._handle = None

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


def is_held(directory: Path) -> bool:
    """Whether another process holds the job's lock now."""
    if directory.absolute() / ".lock" in JobLock.held:
        return False
    try:
        with (directory / ".lock").open() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
