"""A bounded number of calls under way, given out in the order in which they are asked for.

``threading.Semaphore`` lets whoever comes at the right moment overtake those who wait. Here the oldest line would wait
for ever while later ones fill the window, until only that one is under way.

The client's connections are no substitute: a call that waits to be repeated has none, and keeps its slot, so a service
that is busy or away is not asked for other lines meanwhile.
"""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class Slots:
    """At most ``count`` threads are inside at once; the others wait in a queue. A context manager, thread-safe."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        gate.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()  # the slot goes on to the next one, it is never free in between
            else:
                self._free += 1
