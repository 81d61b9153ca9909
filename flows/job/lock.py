"""The locks of a job. Each is a ``flock``, which the kernel releases however the process ends.

The process that runs the job holds ``<job>/.lock``. Dask workers that process parts of a step share ``.parts.lock``.
They end when the run that ordered the parts no longer holds ``.lock``.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from flows.output import patience as telling
from tasks.shared.errors import TerminalError, storage_errors
from tasks.shared.stop import SharedStop, Stop

LOCK = ".lock"
PARTS = ".parts.lock"

PATIENCE = 1.0
"""Seconds for which ``job_lock`` tries, since ``is_held`` in another process takes the lock for a moment."""


held_here: set[Path] = set()
"""The locks that this process holds."""


class JobBusyError(TerminalError):
    """Another process runs the job."""

    exit_code = 4


@contextmanager
def job_lock(directory: Path, *, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the exclusive lock on a job's directory. Raises ``JobBusyError`` and ``StorageError``.

    A process that holds the lock may take it again: a command takes it, then the flow that the command runs.
    """
    path = directory.absolute() / LOCK
    if path in held_here:
        yield
        return
    with _opened(path) as handle:  # the file stays: removing it would let two processes hold two locks
        with storage_errors(path):
            _take(handle, path, patience)
            handle.truncate(0)
            handle.write(f"process {os.getpid()} on {socket.gethostname()} since {datetime.now(UTC):%F %T}Z".encode())
        if (parts := path.with_name(PARTS)).exists():
            with telling("waiting for workers of an earlier run"), _opened(parts, fcntl.LOCK_EX):
                pass
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
                name = handle.read().decode(errors="replace") or "its name is not known"
                raise JobBusyError(
                    "job-busy", f"the job is being run by another process ({name})",
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


def holder(directory: Path) -> str:
    """Return the text about the process that holds the job's lock, or held it last. Raises ``StorageError``."""
    with storage_errors(directory / LOCK):
        return (directory / LOCK).read_text()


@contextmanager
def _opened(path: Path, kind: int = 0) -> Iterator[IO[bytes]]:
    """Open a lock file, create it if it is missing, and wait for a lock of this kind."""
    with storage_errors(path):
        handle = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
    with handle:
        if kind:
            fcntl.flock(handle, kind)
        yield handle


@contextmanager
def part_lock(directory: Path, run: str, number: int) -> Iterator[Stop]:
    """Hold the locks of a part in a worker. ``run`` is the ``holder`` of the run that ordered the part.

    Two workers never process the same part, even if Dask believes that one of them is lost.
    """
    shared, own = _opened(directory / PARTS, fcntl.LOCK_SH), _opened(directory / f".part-{number}.lock", fcntl.LOCK_EX)
    with shared, own:
        stop = SharedStop(_PartStop(directory, run))  # its ``sleep`` checks the ``_PartStop`` all the time
        stop.check()
        yield stop


class _PartStop(Stop):
    """The stop of a part. It is requested when the job's lock is free, or another run holds it."""

    def __init__(self, directory: Path, run: str) -> None:
        super().__init__()
        self._directory, self._run, self._next_look = directory, run, 0.0

    def check(self) -> None:
        """Raise ``Stopped`` if the part is to end."""
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + PATIENCE
            if not is_held(self._directory) or holder(self._directory) != self._run:
                self.request("the end of its run")
        super().check()
