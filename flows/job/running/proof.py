"""The heartbeat of a job, and the proof that the machine which had a job is dead: no sign of life for a whole lease.

A holder that lives gives a sign (the lease renewed, or the heartbeat written) within ``LeaseTimes.give_up``, or ends;
``give_up`` is shorter than ``lease``. So if the server answered every check, and neither sign came in one whole lease
by this machine's monotonic clock, the holder has ended, or its machine sleeps: then it notices on waking, before its
next request. Clocks of two machines are never compared.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from flows.engine.api import Json
from tasks.shared.errors import NetworkError


@dataclass(frozen=True)
class LeaseTimes:
    """The times of a lease, in seconds.

    A holder renews the lease every ``renew``, after a failure every ``retry``, and writes its heartbeat every ``beat``.
    Without a sign of life for ``give_up`` it ends, trying again in the last ``sure``; calls then in progress, of
    ``call`` a phase, end before ``lease`` does. A successor watches both for one whole ``lease``, the server every
    ``look``; if an answer comes ``gap`` after the check before, the watch starts over. A renewal in the first ``gap``
    also only makes it start over: under load, a server carries out a dead holder's last request late.
    """

    lease: float = 60.0
    renew: float = 15.0
    retry: float = 3.0
    beat: float = 5.0
    give_up: float = 45.0
    sure: float = 10.0
    call: float = 5.0
    look: float = 3.0
    gap: float = 12.0


HEARTBEAT = ".heartbeat"

_LENGTH = 64
"""Constant size in bytes, so that it can be rewritten on a full disk."""


class Heartbeat:
    """The heartbeat file of one job."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / HEARTBEAT
        self._beats = 0

    def beat(self, holder: str) -> None:
        """Write the next beat. The file is opened and closed each time, so that NFS shows it. Raises ``OSError``."""
        self._beats += 1
        content = f"{holder} {self._beats}".encode().ljust(_LENGTH - 1) + b"\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(handle, content, 0)
        finally:
            os.close(handle)

    def read(self) -> bytes | None:
        """Return the content; ``None`` without a file. Raises ``OSError`` if it cannot be read."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    def remove(self) -> None:
        """Remove the file: the job was released."""
        with suppress(OSError):
            self.path.unlink()


def last_beat(directory: Path) -> datetime | None:
    """Return when the heartbeat was last written, by the clock of the file system; ``None`` without one."""
    try:
        return datetime.fromtimestamp((directory / HEARTBEAT).stat().st_mtime, UTC)
    except OSError:
        return None


def beats(directory: Path, seconds: float) -> bool:
    """Return whether the heartbeat was written within the last ``seconds``. For display only, by the file system's
    clock.

    A time in the future does not count: that clock was set back, and a living holder writes again within seconds.
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


class LeaseTakenError(Exception):
    """Another machine has the lease."""


def watch_for_silence(
    found: Json | None,
    look: Callable[[], Json | None],
    heartbeat: Heartbeat | None,
    times: LeaseTimes,
    *,
    patience: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Json | None:
    """Return a job's limit as it was read last, when its holder gave no sign of life for a whole lease.

    ``found`` is the limit as it is now; ``look`` gets it from the server, once. The server may be away for ``patience``
    seconds, after which the watch starts over. ``clock`` and ``sleep`` are seams for tests.

    Raises:
        LeaseTakenError: the holder gave a sign of life.
        NetworkError: the server did not answer for ``patience``.
        OSError: the job's directory cannot be read.
    """

    def beat() -> bytes | None:
        return heartbeat.read() if heartbeat is not None else None

    row, first_beat = _of(found), beat()
    started = answered = clock()
    begun: float | None = started
    while True:
        sleep(min(1.0, times.look))
        if beat() != first_beat:
            raise LeaseTakenError
        before = clock()
        if before - answered < times.look:
            continue
        try:
            found = look()
        except NetworkError:
            begun = None
            if before - answered > patience:
                raise
            continue
        now = clock()
        seen = _of(found)
        if seen != row:
            if seen is None or row is None or seen[0] != row[0] or now - started > times.gap:
                raise LeaseTakenError
            row, begun = seen, now
        if begun is None or now - answered > times.gap:
            begun = now
        answered = now
        if now - begun >= times.lease:
            return found


def _of(found: Json | None) -> tuple[str, str] | None:
    return None if found is None else (str(found["id"]), str(found["updated"]))
