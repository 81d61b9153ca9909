"""What a running step counts: files, bytes, resources, requests, and how far it is. Nobody in ``tasks/`` reads it.

A step calls ``meter.add(...)`` and knows neither terminal nor Prefect. Whoever shows progress takes a ``snapshot()``
when it likes (a bar, a plain line per minute, an artifact). What happens rather than adds up is told with
``meter.tell(event)``, for a collector that keeps it (``events.py``).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tasks.shared.errors import storage_errors
from tasks.shared.events import Collector, Event, RequestRetry, Status, nobody
from tasks.shared.files.names import ZST

_USUAL_RATIO: Final = 10.0
"""Content to stored size of compressed files, until one has been read."""

_BASE: Final = 1.05


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


class Meter:
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
        self._stored: dict[Path, int] = {}
        self._done = 0
        self._ratio = _USUAL_RATIO
        self.requests = 0
        self.retries = 0
        self._buckets: dict[int, int] = {}

    def expect(self, *, files: int | None = None, bytes: int | None = None) -> None:  # noqa: A002
        """Say how much there is to do, as far as it is known."""
        with self._lock:
            self._files_total = files if files is not None else self._files_total
            self._bytes_total = bytes if bytes is not None else self._bytes_total

    def work_on(self, files: Iterable[Path]) -> None:
        """Say which files are worked on, one after the other: how far it is goes by their sizes on disk, because what
        compressed files hold is not known beforehand. Raises ``StorageError``.
        """
        for path in files:
            with storage_errors(path):
                self._stored[path] = max(1, path.stat().st_size)
        self.expect(files=len(self._stored))

    def within(self, path: Path, content: int, *, whole: bool = False) -> None:
        """Say that ``content`` bytes of a file are done; ``whole`` when that is all of it."""
        stored, compressed = self._stored[path], path.suffix.lower() == ZST
        with self._lock:
            if whole:
                self._done += stored
                if compressed and content:
                    self._ratio = max(1.0, content / stored)
            part = 0 if whole else min(stored, content / (self._ratio if compressed else 1.0))
            self._fraction = min(1.0, (self._done + part) / sum(self._stored.values()))

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

    def request(self, seconds: float, *, repeated: bool = False) -> None:
        """Count one request that took ``seconds``; ``repeated`` when it repeats an earlier one.

        Durations are kept as a histogram with buckets 5 % apart, so memory does not grow with their number.
        """
        bucket = math.ceil(math.log(max(seconds, 1e-6), _BASE))
        with self._lock:
            self.requests += 1
            self.retries += repeated
            self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    def retry(
        self, service: str, operation: str, error: BaseException | None, *, attempt: int, attempts: int, seconds: float
    ) -> None:
        """Tell that a request failed for now and is made again after ``seconds``; ``attempt`` of ``attempts`` has
        failed."""
        status: int | None = getattr(error, "status", None)
        reference = str(getattr(error, "reference", type(error).__name__))
        self.tell(
            RequestRetry(
                service=service,
                operation=operation,
                attempt=attempt,
                attempts=attempts,
                wait=round(seconds, 3),
                status=status,
                error=None if status else reference,
            )
        )

    def retried(self) -> None:
        """Count a repetition of which ``request`` cannot know."""
        with self._lock:
            self.retries += 1

    def percentile(self, share: float) -> float | None:
        """The time in seconds that ``share`` (0…1) of the requests did not exceed, to within 5 %."""
        with self._lock:
            seen = 0
            for bucket in sorted(self._buckets):
                seen += self._buckets[bucket]
                if seen >= share * self.requests:
                    return float(_BASE**bucket)
            return None

    def statistics(self) -> dict[str, int | float | None]:
        """Requests, retries, p50 and p95 as ``StepReport`` has them; nothing when no service was asked."""
        if not self.requests:
            return {}
        p50, p95 = self.percentile(0.5), self.percentile(0.95)
        return {"requests": self.requests, "retries": self.retries, "p50": p50, "p95": p95}
