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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tasks.shared.errors import storage_errors
from tasks.shared.events import Collector, Event, RequestRetry, Status, nobody
from tasks.shared.files.names import ZST
from tasks.shared.log import logger

_USUAL_RATIO: Final = 10.0
"""Content to stored size of compressed files, until one has been read."""

_BASE: Final = 1.05

STILL: Final = 10.0
"""Seconds without anything done after which the rate is said to be zero, and the time left unknown
(``4-product.md`` §5)."""


@dataclass(frozen=True)
class Held:
    """A request that failed for now and waits for its next try, in ``seconds`` (0: it is under way again).

    ``why`` is a status or an error reference; the next try is ``attempt`` of ``attempts``, and ``others`` wait too.
    """

    service: str
    why: str
    seconds: float
    attempt: int
    attempts: int
    others: int = 0


@dataclass(slots=True)
class Snapshot:
    """The counters at one moment. Sizes in bytes, times in seconds; ``None`` means not known.

    ``stands`` says that nothing moves on the other side, so how long it still takes is not known. ``measured_from`` are
    the seconds and the fraction from which on the rate of the fraction is known: a service may have been at work before
    this run. ``warnings`` are what a person should see while the step runs, in order. ``still`` is for how long nothing
    was done, where the step counts what it does; ``held`` the request that is tried again next, if one is.
    """

    files: int = 0
    files_total: int | None = None
    bytes: int = 0
    bytes_total: int | None = None
    resources: int = 0
    seconds: float = 0.0
    message: str | None = None
    fraction: float | None = None
    stands: bool = False
    measured_from: tuple[float, float] = (0.0, 0.0)
    warnings: tuple[str, ...] = ()
    still: float = 0.0
    held: Held | None = None

    @property
    def rate(self) -> float:
        """Bytes per second since the step began."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta_seconds(self) -> float | None:
        """Seconds left at the rate so far; ``None`` where that is unknown: before the fraction done has grown, while
        nothing is done, and when the last answers are waited for.
        """
        since, before = self.measured_from
        if self.fraction is None or not before < self.fraction < 1 or self.seconds <= since or self.stands:
            return None
        if self.still >= STILL:
            return None
        return (self.seconds - since) * (1 - self.fraction) / (self.fraction - before)


class Meter:
    """Thread-safe counters of one step; ``collector`` takes what the step tells, and each new text it shows."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, collector: Collector = nobody) -> None:
        self._collector = collector
        self._lock = threading.Lock()
        self._clock = clock
        self._started = clock()
        self._now = Snapshot()
        self._stored: dict[Path, int] = {}
        self._done = 0
        self._ratio = _USUAL_RATIO
        self._moved = self._started
        self._held: dict[int, tuple[RequestRetry, float]] = {}
        self.requests = 0
        self.retries = 0
        self._buckets: dict[int, int] = {}

    def expect(self, *, files: int | None = None, bytes: int | None = None) -> None:  # noqa: A002
        """Say how much there is to do, as far as it is known."""
        with self._lock:
            self._now.files_total = files if files is not None else self._now.files_total
            self._now.bytes_total = bytes if bytes is not None else self._now.bytes_total

    def work_on(self, files: Iterable[Path]) -> None:
        """Say which files are worked on, one after the other: bytes, and how far it is, go by their sizes on disk,
        because what compressed files hold is not known beforehand. Raises ``StorageError``.
        """
        for path in files:
            with storage_errors(path):
                self._stored[path] = max(1, path.stat().st_size)
        self.expect(files=len(self._stored), bytes=sum(self._stored.values()))

    def within(self, path: Path, content: int, *, whole: bool = False) -> None:
        """Say that ``content`` bytes of a file are done; ``whole`` when that is all of it."""
        stored, compressed = self._stored[path], path.suffix.lower() == ZST
        with self._lock:
            if whole:
                self._done += stored
                if compressed and content:
                    self._ratio = max(1.0, content / stored)
            part = 0 if whole else min(stored, content / (self._ratio if compressed else 1.0))
            self._moved = self._clock()
            self._now.bytes = int(self._done + part)
            self._now.fraction = min(1.0, (self._done + part) / sum(self._stored.values()))

    def add(self, *, files: int = 0, bytes: int = 0, resources: int = 0) -> None:  # noqa: A002
        """Count what was just done."""
        with self._lock:
            self._now.files += files
            self._now.bytes += bytes
            self._now.resources += resources
            self._moved = self._clock()

    def moves(self) -> None:
        """Say that bytes flow which are counted later, when all of them are there: a large body on its way."""
        self._moved = self._clock()

    def warn(self, text: str, *, once: bool = False) -> None:
        """Say something now that a person should see who waits for the step, and who reads its log; with ``once`` not
        again what was said before."""
        with self._lock:
            if once and text in self._now.warnings:
                return
            self._now.warnings += (text,)
        logger.warning("%s", text)

    def say(self, message: str | None = None, *, fraction: float | None = None, stands: bool = False) -> None:
        """Set the short text, which an empty one takes back, and, where a service reports one, the fraction done (0…1);
        it ``stands`` while nothing moves."""
        with self._lock:
            now = self._now
            now.stands = stands
            news = message is not None and message != now.message
            if message is not None:
                now.message = message or None
            if fraction is not None:
                if now.fraction is None:
                    now.measured_from = (self._clock() - self._started, fraction)
                now.fraction = fraction
        if message and news:
            self.tell(Status(message=message, fraction=fraction))

    def begin(self, message: str) -> None:
        """Begin another phase of the step: rate, fraction and what is left of it count from here."""
        with self._lock:
            self._started = self._moved = self._clock()
            self._now = Snapshot(message=message, stands=self._now.stands, warnings=self._now.warnings)
        self.tell(Status(message=message))

    def tell(self, event: Event) -> None:
        """Tell what happened to whoever keeps events; nobody, unless a collector was given.

        A request that is tried again is in the snapshots from now on, until something is done after its wait: whether
        its own meter told of it, or another one whose collector this is.
        """
        if isinstance(event, RequestRetry):
            with self._lock:
                self._held[threading.get_ident()] = event, self._clock() + event.wait
        self._collector(event)

    def snapshot(self) -> Snapshot:
        """The counters now."""
        with self._lock:
            now = self._clock()
            known = self._now
            fraction = known.fraction
            if fraction is None and known.bytes_total:
                fraction = min(1.0, known.bytes / known.bytes_total)
            elif fraction is None and known.files_total:
                fraction = min(1.0, known.files / known.files_total)
            counts = known.bytes or known.bytes_total or known.files_total
            return replace(
                known,
                seconds=now - self._started,
                fraction=fraction,
                still=now - self._moved if counts else 0.0,
                held=self._next_try(now),
            )

    def _next_try(self, now: float) -> Held | None:
        """The first of those that wait; what is under way again is forgotten once something was done."""
        for thread, (_, until) in [*self._held.items()]:
            if self._moved > until:
                del self._held[thread]
        if not self._held:
            return None
        event, until = min(self._held.values(), key=lambda held: held[1])
        return Held(
            service=event.service,
            why=str(event.status or event.error),
            seconds=max(0.0, until - now),
            attempt=event.attempt + 1,
            attempts=event.attempts,
            others=len(self._held) - 1,
        )

    def request(self, seconds: float, *, repeated: bool = False) -> None:
        """Count one request that took ``seconds``; ``repeated`` when it repeats an earlier one.

        Durations are kept as a histogram with buckets 5 % apart, so memory does not grow with their number.
        """
        bucket = math.ceil(math.log(max(seconds, 1e-6), _BASE))
        with self._lock:
            self.requests += 1
            self.retries += repeated
            self._held.pop(threading.get_ident(), None)
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
