"""A few files at once: a small thread pool that ends at the first error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from tasks.shared.errors import Stopped
from tasks.shared.stop import Stop

T = TypeVar("T")

_SLICE = 0.25
"""Seconds between two looks at the run's own stop while sleeping."""


class SharedStop(Stop):
    """A stop for work done together: set by the run's stop, or by the first of the others that failed."""

    def __init__(self, run: Stop) -> None:
        super().__init__()
        self._run = run

    @property
    def requested(self) -> bool:
        """Whether the run is to stop, or another one failed."""
        return self._run.requested or super().requested

    def check(self) -> None:
        """Raise ``Stopped`` when the run is to stop, or another one failed."""
        self._run.check()
        super().check()

    def sleep(self, seconds: float) -> None:
        """Sleep, or raise ``Stopped`` as soon as one of both asks."""
        left = seconds
        while left > 0:
            self._run.check()
            super().sleep(min(left, _SLICE))
            left -= _SLICE
        self.check()


def for_each(items: Iterable[T], work: Callable[[T, Stop], None], *, threads: int, stop: Stop) -> None:
    """Call ``work(item, stop)`` for every item, at most ``threads`` at once, started in the order given.

    The first error ends it: what has not begun does not begin, what is under way sees its ``stop`` set. All threads
    have ended when this returns or raises. Raises the first error; ``Stopped`` when the run itself is to stop.
    """
    together = SharedStop(stop)

    def one(item: T) -> None:
        together.check()
        try:
            work(item, together)
        except BaseException:
            together.request("another file failed")
            raise

    with ThreadPoolExecutor(max_workers=max(1, threads), thread_name_prefix="sluice-file") as pool:
        futures = [pool.submit(one, item) for item in items]
        try:
            wait(futures)
        except BaseException:
            together.request("interrupted")  # Ctrl-C: before the pool waits for its threads
            raise
    failures = [error for error in map(Future.exception, futures) if error is not None]
    stop.check()
    for error in failures:
        # One of these began it; the Stopped ones only followed.
        if not isinstance(error, Stopped):
            raise error
    for error in failures:
        raise error
