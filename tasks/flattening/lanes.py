"""A few groups at once, each group's batches one after the other, within a budget of memory.

The rows of a group are in the order of its batches, so only groups are worked on in parallel. Whoever submits waits
while what is held would exceed the budget: backpressure instead of queues without end (``architecture.md`` rule 8).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self

from tasks.flattening.batches import Batch
from tasks.shared.errors import Stopped
from tasks.shared.parallel import SharedStop

_SLICE: Final = 0.25
"""Seconds between two looks at the stop while waiting."""


class Lanes:
    """Calls ``work(batch)``, for at most ``threads`` groups at once. ``budget`` is in bytes.

    The first error requests ``together``; it is raised by whatever is called next, and when the context is left.
    However that is left, no thread remains.
    """

    def __init__(self, work: Callable[[Batch], None], *, threads: int, budget: int, together: SharedStop) -> None:
        self._work = work
        self._budget = budget
        self._together = together
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="sluice-flattening")
        self._changed = threading.Condition()
        self._waiting: dict[int, deque[Batch]] = {}
        self._held = 0
        self._failed: BaseException | None = None

    def make_room(self, size: int) -> None:
        """Wait until ``size`` bytes beside the submitted batches are within the budget, or none is left."""
        if not self._held:
            return
        with self._changed:
            while self._held and self._held + size > self._budget:
                self._changed.wait(_SLICE)
                self._check()

    def submit(self, batch: Batch) -> None:
        """Hand a batch over, behind the others of its group."""
        with self._changed:
            self._check()
            self._held += len(batch.body)
            queue = self._waiting.get(batch.place)
            if queue is not None:
                queue.append(batch)
                return
            self._waiting[batch.place] = deque([batch])
            self._pool.submit(self._next, batch.place)

    def drain(self) -> None:
        """Wait until every batch is done."""
        with self._changed:
            while self._held:
                self._changed.wait(_SLICE)
                self._check()
            self._check()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._together.request("the work it belongs to has ended")
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._failed is not None and (error is None or isinstance(error, Stopped)):
            raise self._failed from None

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed
        self._together.check()

    def _next(self, place: int) -> None:
        """Work on the first batch of a group, and let its next one come when it is a turn."""
        with self._changed:
            batch = self._waiting[place].popleft()
        size = len(batch.body)
        try:
            self._together.check()
            self._work(batch)
        except BaseException as error:  # noqa: BLE001 - raised where batches are submitted
            with self._changed:
                # A Stopped only follows from what happened elsewhere.
                if self._failed is None or isinstance(self._failed, Stopped):
                    self._failed = error
            self._together.request("another group failed")
        finally:
            del batch
            with self._changed:
                self._held -= size
                if self._waiting[place] and not self._together.requested:
                    self._pool.submit(self._next, place)
                else:
                    del self._waiting[place]
                self._changed.notify_all()
