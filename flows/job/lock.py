"""The lock of a job: ``flock`` on ``<job>/.lock``, held by the process that runs the job, released however it ends."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tasks.shared.errors import TerminalError, storage_errors

LOCK = ".lock"

PATIENCE = 1.0
"""Seconds to try: longer than a reader holds the lock (``is_held``), short for a person."""


held_here: set[Path] = set()
"""The locks that this process holds."""


class JobBusyError(TerminalError):
    """Another process runs the job."""

    exit_code = 4


@contextmanager
def job_lock(directory: Path, *, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the exclusive lock on a job's directory. Raises ``JobBusyError`` and ``StorageError``.

    A process that holds it may take it again: a command does before it changes a job, and then the flow in it.
    """
    path = directory.absolute() / LOCK
    if path in held_here:
        yield
        return
    with storage_errors(path):
        handle = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
    with handle:  # the file stays: removing it would let two processes hold two locks
        with storage_errors(path):
            _take(handle, path, patience)
            handle.truncate(0)
            handle.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        held_here.add(path)
        try:
            yield
        finally:
            held_here.discard(path)


def _take(handle: IO[bytes], path: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = handle.read().decode(errors="replace") or "its name is not known"
                raise JobBusyError(
                    "job-busy", f"the job is being run by another process ({holder})",
                    context=str(path.parent), hint="wait for it, or stop it with Ctrl-C there",
                ) from None  # fmt: skip
            time.sleep(0.05)


def is_held(directory: Path) -> bool:
    """Return whether another process holds the job's lock."""
    if directory.absolute() / LOCK in held_here:
        return False
    try:
        with (directory / LOCK).open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
