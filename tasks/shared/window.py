"""A window of work in flight: several requests at once, their answers in the order they were asked in.

Backpressure instead of queues without end (``architecture.md`` rule 8): what has been read and not yet been handed on
is bounded, in items and in bytes, so memory does not grow with the data, also while one slow answer holds up the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, Generic, TypeVar

from tasks.shared.errors import Stopped
from tasks.shared.parallel import SharedStop
from tasks.shared.stop import Stop

T = TypeVar("T")
R = TypeVar("R")

BUDGET: Final = 64 << 20
"""Bytes of items in a window, where the caller says nothing else."""

_SLICE: Final = 0.25
"""Seconds between two looks at the run's stop while waiting for an answer."""


def in_order(
    items: Iterable[T],
    work: Callable[[T], R],
    *,
    threads: int,
    stop: Stop,
    weigh: Callable[[T], int] = lambda _: 0,
    budget: int = BUDGET,
    together: SharedStop | None = None,
) -> Generator[R, None, None]:
    """Yield ``work(item)`` for every item, in the order of ``items``, at most ``threads`` of them worked on at once.

    It gives what the loop ``for item in items: yield work(item)`` gives, an error included: it is raised after the
    results before it. ``items`` is read in the caller's thread, and no further than the window reaches: what was read
    and not yet yielded is at most ``max(4 * threads, 16)`` items, and another is read only while they weigh less than
    ``budget`` bytes. So a single item may have any weight.

    After an error no later item begins. What is under way is waited for; that is soon if ``work`` looks at a stop made
    from the run's and given as ``together``: the first error sets it, and is the one raised then. When the run itself
    is to stop, ``Stopped`` is raised once the work under way has ended. However this ends, closed early included, no
    thread is left.
    """
    window = _Window(iter(items), work, max(1, threads), stop, together or SharedStop(stop))
    try:
        while window.fill(weigh, budget):
            yield window.first()
    finally:
        window.end()


class _Window(Generic[T, R]):
    """What was read and not yet yielded. Items are numbered, so that an error stops later ones, never earlier ones."""

    def __init__(
        self, source: Iterator[T], work: Callable[[T], R], threads: int, stop: Stop, together: SharedStop
    ) -> None:
        self._source: Iterator[T] | None = source
        self._work = work
        self._stop = stop
        self._together = together
        self._length = max(4 * threads, 16)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="sluice-window")
        self._futures: deque[tuple[Future[R], int]] = deque()
        self._weight = 0
        self._read = 0
        self._failed: tuple[int, BaseException] | None = None

    def fill(self, weigh: Callable[[T], int], budget: int) -> bool:
        """Read items and let them begin while there is room; whether a result is to come."""
        while self._source is not None and self._failed is None and self._has_room(budget):
            self._stop.check()
            try:
                item = next(self._source)
            except StopIteration:
                self._source = None
            except Stopped:
                raise
            except Exception as error:  # noqa: BLE001 - raised in its turn, after the results before it
                self._source = None
                future: Future[R] = Future()
                future.set_exception(error)
                self._futures.append((future, 0))
            else:
                weight = weigh(item)
                self._weight += weight
                self._futures.append((self._pool.submit(self._one, self._read, item), weight))
                self._read += 1
        return bool(self._futures)

    def first(self) -> R:
        """The result of the first item, waited for; or its error."""
        future, weight = self._futures[0]
        while not future.done():
            self._stop.check()
            wait((future,), _SLICE)
        self._stop.check()
        self._futures.popleft()
        self._weight -= weight
        error = future.exception()
        if isinstance(error, Stopped) and self._failed is not None:
            error = self._failed[1]  # the first one only followed
        if error is not None:
            raise error
        return future.result()

    def end(self) -> None:
        """Let nothing more begin, and wait for what is under way."""
        if self._futures:
            self._together.request("the work it belongs to has ended")
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _has_room(self, budget: int) -> bool:
        return not self._futures or (len(self._futures) < self._length and self._weight < budget)

    def _one(self, number: int, item: T) -> R:
        self._stop.check()
        if self._failed is not None and self._failed[0] < number:
            raise Stopped("an earlier item failed")
        try:
            return self._work(item)
        except Stopped:
            raise
        except BaseException as error:
            if self._failed is None:
                self._failed = (number, error)
            self._together.request("another item failed")
            raise
