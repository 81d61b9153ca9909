"""Work on several items at once in threads. The caller's thread reads the items and receives the results.

The number and size of the items in between is bounded, so memory does not grow with the data, even while one slow
answer blocks the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from itertools import chain
from typing import Final, Protocol, TypeVar

from tasks.shared.files.data_directory import CORE
from tasks.shared.stop import SharedStop, Stop

T = TypeVar("T")
R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)

BUDGET: Final = 64 << 20
"""Default limit of the window of ``in_order``, in bytes of its items."""

_SLICE: Final = 0.25
"""Seconds between two checks of the run's stop while waiting."""


def for_each(
    items: Iterable[T],
    work: Callable[[T, Stop], object],
    *,
    threads: int,
    stop: Stop,
    together: SharedStop | None = None,
) -> None:
    """Call ``work(item, stop)`` for every item, at most ``threads`` at once, started in the order given.

    All calls get the same ``stop``: ``together``, or a new one. After the first error it is set, and no further item
    starts. All threads have ended afterwards. Raises the first error; ``Stopped`` when the run itself is to stop.
    """
    shared, threads = together or SharedStop(stop), max(1, threads)
    with ThreadPoolExecutor(threads, "sluice-work") as pool:
        under_way: set[Future[object]] = set()
        try:
            for item in items:
                stop.check()
                under_way.add(pool.submit(work, item, shared))
                while len(under_way) >= threads:
                    under_way = _without_ended(under_way, stop)
            while under_way:
                under_way = _without_ended(under_way, stop)
        except BaseException:
            shared.request("another item failed")
            raise


def in_order(
    items: Iterable[T],
    work: Callable[[T], R],
    *,
    threads: int,
    stop: Stop,
    weigh: Callable[[T], int] = lambda _: 0,
    budget: int = BUDGET,
) -> Generator[R, None, None]:
    """Yield ``work(item)`` for every item, in the order of ``items``; work on at most ``threads`` of them at once.

    The window holds the items that were read and whose results were not yielded yet: at most ``max(4 * threads, 16)``.
    Another one is read only while they weigh (``weigh``) less than ``budget`` bytes in sum. The error of an item is
    raised in place of its result. Afterwards all threads have ended, also when this is closed early. Raises ``Stopped``
    when the run is to stop.
    """
    most, held, source = max(4 * threads, 16), 0, iter(items)
    window: deque[tuple[Future[R], int]] = deque()
    with ThreadPoolExecutor(max(1, threads), "sluice-work") as pool:
        try:
            more = True
            while more or window:
                while more and len(window) < most and (held < budget or not window):
                    stop.check()
                    try:
                        item = next(source)
                    except StopIteration:
                        more = False
                        break
                    weight = weigh(item)
                    held += weight
                    window.append((pool.submit(work, item), weight))
                    del item
                if window:
                    future, weight = window.popleft()
                    held -= weight
                    yield _result(future, stop)
                    del future
        finally:
            for waiting, _ in window:
                waiting.cancel()


class FileResults(Protocol[R_contra]):
    """Takes the results of one file, in the order of the file's parts."""

    def take(self, result: R_contra) -> None:
        """Take the result of the next part."""

    def finish(self) -> None:
        """Record the file, after its last result."""

    def close(self) -> None:
        """Remove unfinished files."""


def file_by_file(
    bases: Sequence[str],
    parts: Callable[[str], Iterator[T]],
    work: Callable[[T], R],
    opened: Callable[[str], FileResults[R]],
    *,
    threads: int,
    stop: Stop,
    weigh: Callable[[T], int],
    budget: int,
) -> None:
    """Call ``work(part)`` for every part of every file in one window of ``in_order``.

    ``parts(base)`` yields the parts of a file; ``opened(base)`` returns the object that takes its results, in their
    order. Parts of the next file begin before the last results of a file have arrived, so no thread is idle at the end
    of a file; only ``core`` is finished before another file begins. The other arguments are those of ``in_order``.
    """
    core = [base for base in bases if base.lower() == CORE]
    for stage in (core, [base for base in bases if base not in core]):
        items = ((base, part) for base in stage for part in chain(parts(base), (None,)))  # None ends a file
        results = in_order(
            items,
            lambda item: (item[0], work(item[1]) if item[1] is not None else None),
            threads=threads,
            stop=stop,
            weigh=lambda item: weigh(item[1]) if item[1] is not None else 0,
            budget=budget,
        )
        file: FileResults[R] | None = None
        with closing(results):
            try:
                for base, result in results:
                    file = file or opened(base)
                    if result is not None:
                        file.take(result)
                    else:
                        file.finish()
                        file = None
            finally:
                if file is not None:
                    file.close()


def _result(future: Future[R], stop: Stop) -> R:
    while True:
        stop.check()
        if wait([future], timeout=_SLICE).done:
            stop.check()
            return future.result()


def _without_ended(under_way: set[Future[object]], stop: Stop) -> set[Future[object]]:
    """Wait until some of the work has ended; return the rest. Raises the error of ended work."""
    ended: set[Future[object]] = set()
    while not ended:
        stop.check()
        ended, under_way = wait(under_way, timeout=_SLICE, return_when=FIRST_COMPLETED)
    for future in ended:
        future.result()
    return under_way
