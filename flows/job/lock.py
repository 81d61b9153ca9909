"""The lock of a job: held by the process that runs it, released however it ends.

On one machine ``flock``, which the kernel releases (``4-product.md`` §4). Where the Prefect API is one that other
machines may share, a lease beside it (``flows/job/lease.py``): ``flock`` does not reach across machines on every file
system. ``.lock`` says who has the lock, so that its machine need not wait for the lease of a process that was killed.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, ClassVar, Self

import msgspec

from flows.job.lease import Lease, LeaseTakenError, is_leased, lease_api
from tasks.shared.errors import TerminalError, storage_errors
from tasks.shared.files.out_file import write_all

LOCK = ".lock"

PATIENCE = 1.0
"""Seconds to try: long enough to outlast a reader's glance (``is_held``), short for a person."""


class JobBusyError(TerminalError):
    """Another process runs the job (exit code 4)."""

    exit_code = 4


class Holder(msgspec.Struct, frozen=True):
    """Who has a lock: the content of ``.lock``, which is empty when the lock was given back."""

    process: int
    host: str
    machine: str
    limit: str | None = None

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"


def this_machine() -> str:
    """What tells this machine from others, for as long as its kernel runs; containers on one machine share it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


class JobLock:
    """The exclusive lock on a job's directory; a process that has it may take it again.

    A command takes it before it touches the job's state, and the flow it runs in the same process takes it once more.
    """

    held: ClassVar[set[Path]] = set()

    def __init__(self, directory: Path) -> None:
        self.path = directory.absolute() / LOCK
        self._handle: IO[bytes] | None = None
        self._lease: Lease | None = None

    def acquire(self) -> Self:
        """Take the lock.

        Raises:
            JobBusyError: another process has it; names its process id and host.
            StorageError: its file cannot be written; nothing is held then.
            SluiceError: the Prefect API, where the lock of other machines is, does not answer.
        """
        if self.path in self.held:
            return self
        lease: Lease | None = None
        with storage_errors(self.path), ExitStack() as unless_held:
            # Unbuffered: what could not be written is not tried again when it is closed.
            handle = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
            unless_held.enter_context(handle)
            self._flock(handle)
            lease = self._leased(_holder(handle))
            if lease is not None:
                unless_held.callback(lease.release)
            limit = lease.limit if lease is not None else None
            _write(
                handle, msgspec.json.encode(Holder(os.getpid(), socket.gethostname(), this_machine(), limit)) + b"\n"
            )
            unless_held.pop_all()
        self._handle, self._lease = handle, lease
        self.held.add(self.path)
        return self

    def _flock(self, handle: IO[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise self._busy(_holder(handle)) from None
                time.sleep(0.05)
            else:
                return

    def _leased(self, before: Holder | None) -> Lease | None:
        """The lease, where one is needed. That of a process of this machine is ours with its ``flock``: it is gone."""
        address = lease_api(self.path.parent.parent)
        if address is None:
            return None
        known = before.limit if before is not None and before.machine == this_machine() else None
        try:
            return Lease(address, self.path.parent.name).acquire(known)
        except LeaseTakenError:
            raise self._busy(before) from None

    def _busy(self, holder: Holder | None) -> JobBusyError:
        return JobBusyError(
            "job-busy", f"the job is being run by another process ({holder or 'on another machine'})",
            context=str(self.path.parent),
            hint="wait for it, or stop it with Ctrl-C there; after a crash of its machine try again in a minute",
        )  # fmt: skip

    def release(self) -> None:
        """Give the lock back. The file stays: removing it would let two processes hold two locks."""
        if self._handle is None:
            return
        if self._lease is not None:
            self._lease.release()
            self._lease = None
        _write(self._handle, b"")
        self.held.discard(self.path)
        self._handle.close()
        self._handle = None

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


def is_held(directory: Path) -> bool:
    """Whether another process holds the job's lock now, on this machine or another."""
    if directory.absolute() / LOCK in JobLock.held:
        return False
    try:
        with (directory / LOCK).open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            holder = _holder(handle)
    except BlockingIOError:
        return True
    except OSError:
        return False
    if holder is None or holder.limit is None or holder.machine == this_machine():
        return False
    address = lease_api(directory.absolute().parent)
    return address is not None and is_leased(address, directory.name)


def last_taken(directory: Path) -> tuple[bool, datetime | None]:
    """Whether the last who had a job's lock gave it back, and when that one took it or gave it back."""
    try:
        with (directory / LOCK).open("rb") as handle:
            return _holder(handle) is None, datetime.fromtimestamp(os.fstat(handle.fileno()).st_mtime, UTC)
    except OSError:
        return True, None


def _holder(handle: IO[bytes]) -> Holder | None:
    handle.seek(0)
    try:
        return msgspec.json.decode(handle.read(), type=Holder)
    except msgspec.DecodeError:
        return None


def _write(handle: IO[bytes], content: bytes) -> None:
    handle.seek(0)
    handle.truncate()
    write_all(handle.fileno(), content)
