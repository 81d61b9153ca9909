"""The lock of a job: held by the process that runs it, released however it ends.

On one machine ``flock``, which the kernel releases (``4-product.md`` §4). With a Prefect API that other machines may
share, also a lease (``lease.py``): ``flock`` does not reach across machines on every file system. ``.lock`` names the
holder: its machine need not wait for the lease of a killed process, and a holder that was taken for dead finds another
name there.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, ClassVar, NamedTuple

import msgspec

from flows.job.running import lease as leases
from flows.job.running.lease import Lease, is_leased, lease_api
from flows.job.running.proof import Heartbeat, LeaseTakenError, last_beat
from tasks.shared.errors import TerminalError, storage_errors
from tasks.shared.files.out_file import open_lock, write_all
from tasks.shared.log import logger

LOCK = ".lock"

PATIENCE = 1.0
"""Seconds to try: longer than a reader holds the lock (``is_held``), short for a person."""


HANDED_OVER = 15.0
"""Extra seconds for an observer of another machine, after a whole lease, to act on its result."""


class JobBusyError(TerminalError):
    """Another process runs the job (exit code 4)."""

    exit_code = 4


class Holder(msgspec.Struct, frozen=True):
    """The holder of a lock: the content of ``.lock``, empty once the lock is released."""

    process: int
    host: str
    machine: str
    limit: str | None = None

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"


def this_machine() -> str:
    """Return an id of this machine until its next boot; containers on one machine share it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


class JobLock:
    """The exclusive lock on a job's directory; a process that holds it may take it again.

    A command takes the lock before it touches the job's state, and the flow it runs in the same process takes it again.
    """

    held: ClassVar[dict[Path, JobLock]] = {}

    def __init__(self, directory: Path, *, bridges: bool = False, judges: bool = False) -> None:
        """``bridges``: wait for a Prefect API that is away as long as a running job does. ``judges``: the holder
        does not run the job, and leaves the time of the last sign of life unchanged.
        """
        self.path = directory.absolute() / LOCK
        self._bridges = bridges
        self._judges = judges
        self._last_sign: datetime | None = None
        self._handle: IO[bytes] | None = None
        self._lease: Lease | None = None
        self._content = b""
        self._writing = threading.Lock()

    def acquire(self) -> JobLock:
        """Take the lock, or return the one that this process holds.

        Raises:
            JobBusyError: another process has it; names its process id and host.
            StorageError: its file cannot be written; the lock is not held then.
            SluiceError: the Prefect API, where the lock of other machines is, does not answer; or taking the lock took
                so long that another machine may have taken the job meanwhile.
        """
        if self.path in self.held:
            return self.held[self.path]
        lease: Lease | None = None
        self._last_sign = last_sign(self.path.parent) if self._judges else None
        with storage_errors(self.path), ExitStack() as unless_held:
            # Unbuffered: a failed write is not repeated on closing.
            handle = unless_held.enter_context(open_lock(self.path))
            self._flock(handle)
            lease = self._leased(_holder(handle))
            if lease is not None:
                unless_held.callback(lease.release)
            unless_held.callback(setattr, self, "_handle", None)
            self._handle = handle
            self.rename(lease.limit if lease is not None else None)
            if lease is not None and lease.late:
                # The directory did not answer, or this machine slept: by now another one may have watched in vain.
                raise leases.lease_lost("taking the job took too long: another machine may have it", lease.name)
            unless_held.pop_all()
        self._lease = lease
        self.held[self.path] = self
        if lease is not None:
            lease.hold(self.still_ours, self.rename)
        return self

    def rename(self, limit: str | None) -> None:
        """Write the holder and its limit into the lock file, unless the lock was released. Raises ``OSError``."""
        with self._writing:
            if self._handle is None:
                return
            holder = Holder(os.getpid(), socket.gethostname(), this_machine(), limit)
            self._content = msgspec.json.encode(holder) + b"\n"
            _write(self._handle, self._content)
            if limit is not None:
                os.fsync(self._handle.fileno())  # for the other machines

    def still_ours(self) -> bool:
        """Return whether the lock file names this process as the holder.

        Raises ``OSError`` if the file cannot be read. A new holder writes its name and never removes the file: if it is
        gone, the job's directory was removed.
        """
        if self.path.read_bytes() == self._content:
            return True
        with self._writing:
            return self.path.read_bytes() == self._content

    def fence(self) -> None:
        """Return when the job certainly belongs to this process; else end the process. Called before irreversible
        actions.

        Raises:
            StorageError: the file cannot be read.
        """
        lease = self._lease
        if lease is None:
            return
        while lease.late:
            time.sleep(0.1)  # until it is made sure of, or this process ends
        with storage_errors(self.path):
            ours = self.still_ours()
        if not ours:
            raise lease.lose("another machine has taken the job")

    def _flock(self, handle: IO[bytes]) -> None:
        begun, before = time.monotonic(), _holder(handle)
        heart = Heartbeat(self.path.parent)
        beat = heart.read()
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # While the file names another machine, the local holder of the lock watches that machine and then
                # ends, so a command that continues the job waits for it instead of being refused.
                holder = _holder(handle)
                if holder != before:
                    begun, before = time.monotonic(), holder
                elsewhere = _elsewhere(holder)
                patience = leases.TIMES.lease + HANDED_OVER if elsewhere else PATIENCE
                if time.monotonic() - begun > patience or (elsewhere and heart.read() != beat):
                    raise self._busy(holder) from None
                time.sleep(0.05)
            else:
                return

    def _leased(self, before: Holder | None) -> Lease | None:
        """Return the lease, if one is needed. A lease of a dead process of this machine comes with its ``flock``."""
        directory = self.path.parent
        address = lease_api(directory.parent)
        if address is None:
            return None
        there = before is not None and before.limit is not None
        here = before is not None and before.machine == this_machine()
        known = before.limit if before is not None and here else None
        lease = Lease(address, directory.name, directory, bridges=self._bridges)
        try:
            return lease.acquire(known, before=str(before) if there and not here else None)
        except LeaseTakenError:
            raise self._busy(before) from None

    def _busy(self, holder: Holder | None) -> JobBusyError:
        return JobBusyError(
            "job-busy", f"the job is being run by another process ({holder or 'on another machine'})",
            context=str(self.path.parent),
            hint="wait for it, or stop it with Ctrl-C there; after a crash of its machine try again in a minute",
        )  # fmt: skip

    def release(self) -> None:
        """Release the lock. The file stays: removing it would let two processes hold two locks."""
        if self._handle is None:
            return
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.end()
        with ExitStack() as last:
            last.callback(self._let_go)
            if lease is not None:
                last.callback(lease.release)
            try:
                self._give_back(lease is not None)
            except OSError as error:
                # The job's results are safe, and the kernel releases the lock; the next holder waits for a whole lease.
                logger.warning("the lock of the job is not written: %s", error.strerror or type(error).__name__)

    def _give_back(self, leased: bool) -> None:
        """Clear the lock file before the limit is removed: while it names a machine, a missing limit proves nothing."""
        with self._writing:
            if self._handle is None:
                return
            _write(self._handle, b"")
            if self._last_sign is not None:
                os.utime(self._handle.fileno(), (self._last_sign.timestamp(),) * 2)
            if leased:
                os.fsync(self._handle.fileno())

    def _let_go(self) -> None:
        with self._writing, suppress(OSError):
            self.held.pop(self.path, None)
            handle, self._handle = self._handle, None
            if handle is not None:
                handle.close()

    def __enter__(self) -> JobLock:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


def is_held(directory: Path) -> bool:
    """Return whether another process, on this machine or another, holds the job's lock."""
    if directory.absolute() / LOCK in JobLock.held:
        return False
    try:
        with (directory / LOCK).open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            holder = _holder(handle)
    except BlockingIOError:
        if not named_elsewhere(directory):
            return True  # else a local process watches the named machine
    except OSError:
        return False
    else:
        if not _elsewhere(holder):
            return False
    directory = directory.absolute()
    address = lease_api(directory.parent)
    return address is not None and is_leased(address, directory.name, directory)


def last_sign(directory: Path) -> datetime | None:
    """Return when the last holder gave a sign of life or gave the lock back; ``None`` if no file shows it.

    By the clock of the file system. Without a heartbeat (jobs of one machine only), the time of the last log line.
    """
    last = last_holder(directory)
    if last is None or last.holder is None:
        return last and last.when
    if (beat := last_beat(directory)) is not None:
        return beat
    try:
        return datetime.fromtimestamp((directory / "job.log").stat().st_mtime, UTC)
    except OSError:
        return last.when


class LastHolder(NamedTuple):
    """The last holder of a lock (``None`` once given back), and when the lock was taken or given back."""

    holder: Holder | None
    when: datetime


def last_holder(directory: Path) -> LastHolder | None:
    """Return the content of a job's lock file; ``None`` without one."""
    try:
        with (directory / LOCK).open("rb") as handle:
            return LastHolder(_holder(handle), datetime.fromtimestamp(os.fstat(handle.fileno()).st_mtime, UTC))
    except OSError:
        return None


def named_elsewhere(directory: Path) -> bool:
    """Return whether the lock file names a process of another machine, which has not released the lock."""
    last = last_holder(directory)
    return last is not None and _elsewhere(last.holder)


def _elsewhere(holder: Holder | None) -> bool:
    return holder is not None and holder.limit is not None and holder.machine != this_machine()


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
