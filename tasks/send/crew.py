"""Threads that deliver parcels, never two with a lane in common at once, and no more parcels than they can
carry.

The thread that hands out parcels is the one that takes in the outcomes, so ledger and counts belong to one
thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self

from tasks.send.courier import Outcome, Report
from tasks.send.parcels import Parcel
from tasks.shared.stop import Stop

GRACE = 6.0
"""Seconds that transactions under way get to end after a stop or an error. What they still send is sent again
by the next run, which changes nothing (PUT)."""

_LOOK = 0.25  # seconds between two looks at the stop


class AbortedError(Exception):
    """The crew gives up because of something that is reported elsewhere."""


@dataclass(slots=True)
class _Result:
    """An outcome, and the parcel when it is the last one of it."""

    outcome: Outcome | None = None
    finished: Parcel | None = None
    error: BaseException | None = None


class Crew:
    """``size`` threads around ``deliver``. Use as a context: leaving it ends the threads.

    ``take`` gets every outcome, in the thread that calls ``submit`` and ``drain``. The first error of a
    delivery is raised there, after the others had ``GRACE`` seconds to end and their outcomes were taken.
    """

    def __init__(
        self,
        size: int,
        deliver: Callable[[Parcel, Report], None],
        take: Callable[[Outcome], None],
        *,
        stop: Stop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deliver = deliver
        self._take = take
        self._stop = stop
        self._clock = clock
        self._work: SimpleQueue[Parcel | None] = SimpleQueue()
        self._results: SimpleQueue[_Result] = SimpleQueue()
        self._aborted = threading.Event()
        self._under_way: set[Parcel] = set()
        # One parcel ready for each thread keeps them busy while results are taken in; more would only use
        # memory.
        self._most = size + 2
        self._threads = [
            # Daemons, so that a server that never answers cannot keep the process from ending.
            threading.Thread(target=self._run, name=f"send-{number}", daemon=True)
            for number in range(size)
        ]

    def check(self) -> None:
        """For the threads, between two transactions: raises when the work is to end."""
        self._stop.check()
        if self._aborted.is_set():
            raise AbortedError

    def sleep(self, seconds: float) -> None:
        """For the threads: wait, or raise as ``check`` does. Looks at both reasons in turn."""
        until = self._clock() + seconds
        while (left := until - self._clock()) > 0:
            self._stop.sleep(min(left, _LOOK))
            self.check()

    def submit(self, parcel: Parcel) -> None:
        """Hand out a parcel; waits until its lanes are free and there is room for it."""
        while len(self._under_way) >= self._most or any(
            not parcel.lanes.isdisjoint(other.lanes) for other in self._under_way
        ):
            self._next()
        self._under_way.add(parcel)
        self._work.put(parcel)
        while not self._results.empty():
            self._next()

    def drain(self) -> None:
        """Wait until everything that was handed out is done."""
        while self._under_way:
            self._next()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._aborted.set()
        for _ in self._threads:
            self._work.put(None)
        until = self._clock() + GRACE
        while self._under_way and self._clock() < until:
            with contextlib.suppress(Empty):
                self._receive(self._results.get(timeout=_LOOK))
        for thread in self._threads:
            thread.join(timeout=max(0.0, until - self._clock()))

    def _next(self) -> None:
        """Take in one result, waiting for it. Raises the error of a delivery, and ``Stopped``."""
        while True:
            self._stop.check()
            try:
                result = self._results.get(timeout=_LOOK)
            except Empty:
                continue
            error = self._receive(result)
            if error is not None:
                raise error
            return

    def _receive(self, result: _Result) -> BaseException | None:
        if result.outcome is not None:
            self._take(result.outcome)
        if result.finished is not None:
            self._under_way.discard(result.finished)
        return result.error

    def _run(self) -> None:
        while (parcel := self._work.get()) is not None:
            # Mostly there is one outcome, which then travels with the end of its parcel: waking the other thread
            # costs more than the outcome.
            last = _Result()

            def report(outcome: Outcome) -> None:
                nonlocal last
                if last.outcome is not None:
                    self._results.put(last)
                last = _Result(outcome)

            error: BaseException | None = None
            try:
                self.check()
                self._deliver(parcel, report)
            except BaseException as problem:  # noqa: BLE001 - raised again by the thread that handed it out
                error = problem
            last.finished, last.error = parcel, error
            self._results.put(last)
