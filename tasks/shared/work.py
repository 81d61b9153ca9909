"""The only thread pools: work on several items at once; one thread receives the results.

Backpressure instead of unbounded queues (document 3 §1): the items submitted but not yet received are
bounded, so memory does not grow with the data, even while one slow answer blocks the rest.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Self, TypeVar

from tasks.shared.errors import Stopped
from tasks.shared.stop import SharedStop, Stop

T = TypeVar("T")
R = TypeVar("R")

BUDGET: Final = 64 << 20
"""Default limit of a window, in bytes of its items."""

_SLICE: Final = 0.25
"""Seconds between two checks of the run's stop while waiting."""


class WorkItem(Generic[T, R]):
    """A submitted item; ``number`` counts them from 0."""

    __slots__ = ("blocked", "done", "error", "item", "keys", "number", "told", "weight")

    def __init__(self, item: T, keys: frozenset[Hashable], weight: int, number: int) -> None:
        self.item: T | None = item
        self.keys = keys
        self.weight = weight
        self.number = number
        self.blocked = 0
        """Number of its keys that earlier items hold."""
        self.told: list[R] = []
        """The last result for the item, if any."""
        self.error: BaseException | None = None
        self.done = False


class Workers(Generic[T, R]):
    """Calls ``work(item, pass_result)`` in at most ``threads`` threads. Leaving the context always ends all threads.

    Items start in the order in which they were submitted; an item starts only when earlier items with one of its keys
    have ended. ``take`` gets each passed result in the thread that submits, so records and counts belong to one thread.
    Another item is started only while the items in progress weigh less than ``budget``.

    The first error requests ``stop``, and no item submitted later starts. The next call raises this error, and so does
    leaving the context, instead of a ``Stopped`` that it caused. If the run itself is to stop, ``Stopped`` is raised.
    Items in progress are waited for, which is short if ``work`` checks ``stop``, and their results are received.
    """

    def __init__(
        self,
        work: Callable[[T, Callable[[R], None]], None],
        *,
        threads: int,
        stop: SharedStop,
        budget: float = math.inf,
        take: Callable[[R], None] = lambda _: None,
    ) -> None:
        self._work = work
        self._most = max(1, threads)
        self._stop = stop
        self._budget = budget
        self._take = take
        self._threads: list[threading.Thread] = []
        self._ready: SimpleQueue[WorkItem[T, R] | None] = SimpleQueue()
        self._said: SimpleQueue[tuple[WorkItem[T, R] | None, R | None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._queues: dict[Hashable, deque[WorkItem[T, R]]] = {}
        self._failed: tuple[int, BaseException] | None = None
        self._ended = False
        # Of the thread that submits:
        self._count = 0
        self._under_way = 0
        self._held = 0

    @property
    def failed(self) -> bool:
        """Return whether there was an error."""
        return self._failed is not None

    def submit(self, item: T, *, keys: frozenset[Any] = frozenset(), weight: int = 1) -> None:
        """Submit an item; wait while the items in progress weigh as much as the budget."""
        self.wait_for_capacity()
        self._check()
        self.put(item, keys=keys, weight=weight)
        while not self._said.empty():
            self._receive_results()

    def put(self, item: T, *, keys: frozenset[Any] = frozenset(), weight: int = 1) -> WorkItem[T, R]:
        """Submit an item at once, even above the budget or after an error."""
        job: WorkItem[T, R] = WorkItem(item, keys, weight, self._count)
        self._count += 1
        self._under_way += 1
        self._held += weight
        with self._lock:
            for key in keys:
                queue = self._queues.setdefault(key, deque())
                job.blocked += bool(queue)
                queue.append(job)
            if not job.blocked:
                self._ready.put(job)
        if len(self._threads) < self._most:
            self._threads.append(threading.Thread(target=self._run, name=f"sluice-work-{len(self._threads)}"))
            self._threads[-1].start()
        return job

    def wait_for_capacity(self, weight: int = 1) -> None:
        """Wait until ``weight`` more is within the budget, or no item is in progress."""
        while self._held and self._held + weight > self._budget:
            self._receive_results()
            self._check()

    def drain(self) -> None:
        """Wait until everything is done."""
        while self._under_way:
            self._receive_results()
            self._check()
        self._check()

    def result(self, job: WorkItem[T, R]) -> R:
        """Return the result of an item, waiting for it; raises its error."""
        while not job.done:
            self._stop.run.check()
            self._receive_results()
        self._stop.run.check()
        error = job.error
        if isinstance(error, Stopped) and self._failed is not None:
            error = self._failed[1]  # the first one only followed
        if error is not None:
            raise error
        return job.told.pop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *exc: object) -> None:
        try:
            if error is None:
                self.drain()
        finally:
            self._end()
        if isinstance(error, Stopped) and self._failed is not None and not self._stop.run.requested:
            raise self._failed[1] from None

    def _end(self) -> None:
        self._ended = True
        if self._under_way:
            self._stop.request("the work it belongs to has ended")
        for _ in self._threads:
            self._ready.put(None)
        for thread in self._threads:
            thread.join()
        while not self._said.empty():
            self._receive_results()

    def _check(self) -> None:
        if self._failed is not None and not self._stop.run.requested:
            raise self._failed[1]
        if self._stop.requested:
            self._stop.check()

    def _receive_results(self) -> None:
        """Receive the results of one thread, if there are any soon."""
        with suppress(Empty):
            job, told = self._said.get(timeout=_SLICE)
            if job is None:
                self._take(told)  # type: ignore[arg-type]
                return
            job.done = True
            self._under_way -= 1
            self._held -= job.weight
            for last in job.told:
                self._take(last)

    def _run(self) -> None:
        while self._one(self._ready.get()):
            pass

    def _one(self, job: WorkItem[T, R] | None) -> bool:
        """Work on an item and release it; return whether another one may follow."""
        if job is None:
            return False
        told = job.told

        def pass_result(result: R) -> None:
            # Most items have one result, which is sent with the end of the item to wake the other thread only once.
            if told:
                self._said.put((None, told.pop()))
            told.append(result)

        item, job.item = job.item, None
        try:
            self._may_begin(job.number)
            self._work(item, pass_result)  # type: ignore[arg-type]
        except BaseException as error:  # noqa: BLE001 - raised again where items are submitted
            job.error = error
            with self._lock:
                # A Stopped only follows from an earlier error.
                if self._failed is None or (isinstance(self._failed[1], Stopped) and not isinstance(error, Stopped)):
                    self._failed = job.number, error
            self._stop.request("another item failed")
        del item
        if self._failed is None:
            self._free(job)
        self._said.put((job, None))
        return True

    def _may_begin(self, number: int) -> None:
        self._stop.run.check()
        if self._ended or (self._failed is not None and self._failed[0] < number):
            raise Stopped("another item failed")

    def _free(self, job: WorkItem[T, R]) -> None:
        """Start the items that waited for this one only."""
        with self._lock:
            for key in job.keys:
                queue = self._queues[key]
                queue.popleft()
                if not queue:
                    del self._queues[key]
                    continue
                queue[0].blocked -= 1
                if not queue[0].blocked:
                    self._ready.put(queue[0])


def for_each(items: Iterable[T], work: Callable[[T, Stop], None], *, threads: int, stop: Stop) -> None:
    """Call ``work(item, stop)`` for every item, at most ``threads`` at once, started in the order given.

    After the first error no further item starts, and the ``stop`` of items in progress is set. All threads have ended
    when this returns or raises. Raises the first error; ``Stopped`` when the run itself is to stop.
    """
    together = SharedStop(stop)
    workers: Workers[T, None] = Workers(lambda item, _: work(item, together), threads=threads, stop=together)
    with workers:
        for item in items:
            workers.submit(item)


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

    The results are those of the loop ``for item in items: yield work(item)``; an error is raised after the results
    before it. ``items`` is read in the caller's thread, one window ahead: at most ``max(4 * threads, 16)`` items are
    read and not yet yielded, and another is read only while they weigh less than ``budget`` bytes. So a single item may
    have any weight.

    After an error no later item starts. Items in progress are waited for, which is short if ``work`` checks a stop made
    from the run's and given as ``together``: the first error sets it, and is the one raised then. When the run itself
    is to stop, ``Stopped`` is raised once the work in progress has ended. All threads have ended afterwards, even if
    this is closed early.
    """
    source: Iterator[T] | None = iter(items)
    window: deque[tuple[WorkItem[T, R], int]] = deque()
    held = 0
    broken: Exception | None = None
    workers: Workers[T, R] = Workers(
        lambda item, tell: tell(work(item)), threads=threads, stop=together or SharedStop(stop)
    )
    with workers:
        while True:
            while source is not None and not workers.failed:
                if window and (len(window) >= max(4 * threads, 16) or held >= budget):
                    break
                stop.check()
                try:
                    item = next(source)
                except StopIteration:
                    source = None
                except Stopped:
                    raise
                except Exception as error:  # noqa: BLE001 - raised in its turn, after the results before it
                    source, broken = None, error
                else:
                    weight = weigh(item)
                    held += weight
                    window.append((workers.put(item), weight))
                    del item
            if not window:
                break
            job, weight = window.popleft()
            held -= weight
            yield workers.result(job)
        if broken is not None:
            raise broken
