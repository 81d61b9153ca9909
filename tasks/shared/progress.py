"""Progress of one step: counters that tasks feed and nobody in ``tasks/`` reads.

A task calls ``progress.add(...)`` and knows neither terminal nor Prefect. Whoever shows progress takes a
``snapshot()`` when it likes (a bar, a plain line per minute, an artifact). What happens rather than adds up is told
with ``progress.tell(event)``, for a collector that keeps it (``events.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tasks.shared.events import Collector, Event, Status, nobody


@dataclass(frozen=True)
class Snapshot:
    """The counters at one moment. Sizes in bytes, times in seconds; ``None`` means not known."""

    files: int
    files_total: int | None
    bytes: int
    bytes_total: int | None
    resources: int
    seconds: float
    message: str | None
    fraction: float | None

    @property
    def rate(self) -> float:
        """Bytes per second since the step began."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta_seconds(self) -> float | None:
        """Seconds left at the rate so far, when the fraction done is known and not zero."""
        if not self.fraction or self.seconds <= 0:
            return None
        return max(0.0, self.seconds * (1 - self.fraction) / self.fraction)


class Progress:
    """Thread-safe counters of one step; ``collector`` takes what the step tells, and each new text it shows."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, collector: Collector = nobody) -> None:
        self._collector = collector
        self._lock = threading.Lock()
        self._clock = clock
        self._started = clock()
        self._files = self._bytes = self._resources = 0
        self._files_total: int | None = None
        self._bytes_total: int | None = None
        self._message: str | None = None
        self._fraction: float | None = None

    def expect(self, *, files: int | None = None, bytes: int | None = None) -> None:  # noqa: A002
        """Say how much there is to do, as far as it is known."""
        with self._lock:
            self._files_total = files if files is not None else self._files_total
            self._bytes_total = bytes if bytes is not None else self._bytes_total

    def add(self, *, files: int = 0, bytes: int = 0, resources: int = 0) -> None:  # noqa: A002
        """Count what was just done."""
        with self._lock:
            self._files += files
            self._bytes += bytes
            self._resources += resources

    def say(self, message: str | None = None, *, fraction: float | None = None) -> None:
        """Set the short text and, where a service reports one, the fraction done (0…1)."""
        with self._lock:
            news = message is not None and message != self._message
            self._message = message if message is not None else self._message
            self._fraction = fraction if fraction is not None else self._fraction
        if message is not None and news:
            self.tell(Status(message=message, fraction=fraction))

    def begin(self, message: str) -> None:
        """Begin another phase of the step: rate, fraction and what is left of it count from here."""
        with self._lock:
            self._started = self._clock()
            self._files = self._bytes = self._resources = 0
            self._files_total = self._bytes_total = self._fraction = None
            self._message = message
        self.tell(Status(message=message))

    def tell(self, event: Event) -> None:
        """Tell what happened to whoever keeps events; nobody, unless a collector was given."""
        self._collector(event)

    def snapshot(self) -> Snapshot:
        """The counters now."""
        with self._lock:
            fraction = self._fraction
            if fraction is None and self._bytes_total:
                fraction = min(1.0, self._bytes / self._bytes_total)
            elif fraction is None and self._files_total:
                fraction = min(1.0, self._files / self._files_total)
            return Snapshot(
                files=self._files,
                files_total=self._files_total,
                bytes=self._bytes,
                bytes_total=self._bytes_total,
                resources=self._resources,
                seconds=self._clock() - self._started,
                message=self._message,
                fraction=fraction,
            )


@dataclass
class RequestStats:
    """Requests of one step: how many, how many again, how long they took.

    Durations are kept as a histogram with buckets 5 % apart, so memory does not grow with their number.
    """

    requests: int = 0
    retries: int = 0
    _buckets: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    _BASE = 1.05

    def record(self, seconds: float, *, retry: bool = False) -> None:
        """Count one request that took ``seconds``; ``retry`` when it repeated an earlier one."""
        import math

        bucket = math.ceil(math.log(max(seconds, 1e-6), self._BASE))
        with self._lock:
            self.requests += 1
            self.retries += retry
            self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    def again(self) -> None:
        """Count a repetition of which ``record`` cannot know."""
        with self._lock:
            self.retries += 1

    def percentile(self, share: float) -> float | None:
        """The time in seconds that ``share`` (0…1) of the requests did not exceed, to within 5 %."""
        with self._lock:
            total = sum(self._buckets.values())
            if not total:
                return None
            seen = 0
            for bucket in sorted(self._buckets):
                seen += self._buckets[bucket]
                if seen >= share * total:
                    return float(self._BASE**bucket)
            return None
