"""The processes, seen from the run: started, given items, told to stop, waited for."""

from __future__ import annotations

import logging
import os
import queue
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar

from tasks.shared.errors import TransientError
from tasks.shared.processes.channel import Channel
from tasks.shared.processes.work import Begin, Done, Logged, StopNow, Work
from tasks.shared.progress import RequestStats
from tasks.shared.stop import Stop

T = TypeVar("T")
R = TypeVar("R")

_SLICE: Final = 0.25
"""Seconds between two looks at the run's stop."""
_PATIENCE: Final = 10.0
"""Seconds that a process has to end when it has nothing to do any more."""
_ROOT: Final = Path(__file__).parents[3]

log = logging.getLogger("sluice")


@dataclass(frozen=True)
class Calls(Generic[T, R]):
    """Works on an item when called, from at most ``threads`` threads at once. Raises what the work raises."""

    work: Callable[[T], R]
    threads: int

    def __call__(self, item: T) -> R:
        """Work on an item, and wait for it."""
        return self.work(item)


@contextmanager
def in_processes(
    work: Work[T, R], *, processes: int, slots: int, spare: int, stop: Stop, stats: RequestStats
) -> Iterator[Calls[T, R]]:
    """``work`` done by that many processes, which share the ``slots`` for requests; with one, by this process itself.

    ``spare`` threads in each look at what came back while others wait for the service. When ``stop`` is requested, the
    work under way ends as it would here. Raises ``TransientError`` (``process-lost``) for an item whose process died.
    """
    processes = min(processes, slots)
    if processes <= 1:
        with work.opened(slots=slots, stop=stop, stats=stats) as here:
            yield Calls(here, slots + spare)
        return
    with _Pool(work, processes, slots, spare, stop, stats) as pool:
        yield Calls(pool.call, pool.threads)


class _Member:
    """A process, its control socket, and its seats."""

    def __init__(self, threads: int) -> None:
        theirs: list[socket.socket] = []
        mine: list[Channel] = []
        try:
            for _ in range(1 + threads):
                channel, other = Channel.pair()
                mine.append(channel)
                theirs.append(other)
            self.process = _start(theirs)
        except OSError as error:
            for channel in mine:
                channel.close()
            raise TransientError(
                "process-not-started",
                f"a process of this step cannot be started ({error.strerror or type(error).__name__})",
                hint="lower the number of processes, or let this user have more files, processes or memory (ulimit)",
            ) from None
        finally:
            for other in theirs:
                other.close()
        self.control, *self.seats = mine

    def tell(self, message: object) -> None:
        """Send over the control socket; a process that is gone is noticed at its seats."""
        with suppress(EOFError):
            self.control.send(message)

    def leave_seats(self) -> None:
        """Let it end: it has nothing to do any more."""
        for seat in self.seats:
            seat.close()

    def end(self, deadline: float) -> None:
        """See to it that it ends, by force after ``deadline`` (monotonic clock)."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def fate(self) -> str:
        """How it ended."""
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(_PATIENCE)
            return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return "does not answer"


def _start(sockets: list[socket.socket]) -> subprocess.Popen[bytes]:
    numbers = [one.fileno() for one in sockets]
    # It finds the modules that this process has found, in the same order, and (-P) none where the run was started:
    # a directory tasks/ that lies there is not ours.
    path = [*(entry for entry in sys.path if Path(entry).is_absolute()), str(_ROOT)]
    return subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-P", "-m", "tasks.shared.processes.member", *map(str, numbers)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the run, which tells the others
        pass_fds=numbers,
    )


class _Pool:
    def __init__(
        self, work: Work[Any, Any], processes: int, slots: int, spare: int, stop: Stop, stats: RequestStats
    ) -> None:
        self._stop = stop
        self._stats = stats
        self._members: list[_Member] = []
        self._free: queue.SimpleQueue[tuple[_Member, Channel]] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, name="sluice-processes", daemon=True)
        level = log.getEffectiveLevel()
        shares = [slots // processes + (number < slots % processes) for number in range(processes)]
        try:
            for share in shares:
                member = _Member(share + spare)
                self._members.append(member)
                member.tell(Begin(work, share, share + spare, level))
            self._listener.start()
        except BaseException:
            self._close()  # some may wait for their first message
            self._end()
            raise
        self.threads = sum(len(member.seats) for member in self._members)
        for number in range(max(len(member.seats) for member in self._members)):
            for member in self._members:  # in turn, so that the first items go to different processes
                if number < len(member.seats):
                    self._free.put((member, member.seats[number]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def call(self, item: Any) -> Any:
        """Give an item to a seat that is free, and wait for what becomes of it."""
        member, seat = free = self._free.get()
        try:
            seat.send(item)
            done: Done = seat.receive()
        except EOFError:
            raise TransientError(
                "process-lost",
                f"a process of this step {member.fate()}",
                hint="what is done is kept, and the same command goes on there; the log may say more; where memory was "
                "short, lower the number of processes",
            ) from None
        finally:
            self._free.put(free)
        for seconds, retry in done.requests:
            self._stats.record(seconds, retry=retry)
        if done.error is not None:
            raise done.error
        return done.result

    def _end(self) -> None:
        for member in self._members:
            member.leave_seats()
        deadline = time.monotonic() + _PATIENCE
        for member in self._members:
            member.end(deadline)
        if self._listener.is_alive():
            self._listener.join(_PATIENCE)  # for the last lines of the log
        self._close()

    def _close(self) -> None:
        """Close the control sockets, which ends whoever is still there."""
        for member in self._members:
            member.control.close()

    def _listen(self) -> None:
        try:
            self._hear()
        finally:
            self._close()  # nobody is to work on unheard

    def _hear(self) -> None:
        """Take the lines of the log until all processes have ended, and tell these when the run is to stop."""
        told = False
        with selectors.DefaultSelector() as selector:
            for member in self._members:
                selector.register(member.control, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select(_SLICE):
                    control: Channel = key.fileobj  # type: ignore[assignment]
                    try:
                        line: Logged = control.receive()
                    except EOFError:
                        selector.unregister(key.fileobj)
                    else:
                        logging.getLogger(line.logger).log(line.level, line.text, *line.arguments)
                if self._stop.requested and not told:
                    told = True
                    for member in self._members:
                        member.tell(StopNow(self._stop.reason or "stopped"))
