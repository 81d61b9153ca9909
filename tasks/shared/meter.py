"""Counters of a running step. A progress display may take a ``snapshot()`` at any time."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from tasks.shared.log import logger

STILL: Final = 10.0
"""Seconds without progress after which the rate is shown as zero, and the time left as unknown."""

_WINDOW: Final = 30.0
"""Seconds over which a rate is measured."""

_FIRST: Final = 1.0
"""Seconds between two samples of the counters, and before the first estimate of the time left."""

_BASE: Final = 1.05
"""Ratio of neighbouring buckets in the histogram of request times."""


@dataclass(frozen=True)
class Held:
    """A failed request that is tried again in ``seconds`` (0: the next try is under way).

    ``why`` is a status or an error reference; the next try is ``attempt`` of ``attempts``.
    """

    service: str
    why: str
    seconds: float
    attempt: int
    attempts: int


@dataclass(slots=True)
class Snapshot:
    """The counters at one moment. Sizes in bytes, times in seconds; ``None`` means not known.

    ``bytes`` counts the uncompressed content that this run processed; ``rate`` is bytes of content per second.
    ``fraction`` is the share done (0…1), ``eta_seconds`` the time left. ``stands``: the service makes no progress.
    ``warnings`` are shown while the step runs, in order. ``still`` is the time since the last progress (0 if the step
    counts nothing). ``held`` is the failed request that is tried again.
    """

    files: int = 0
    files_total: int | None = None
    bytes: int = 0
    resources: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    message: str | None = None
    fraction: float | None = None
    stands: bool = False
    eta_seconds: float | None = None
    warnings: tuple[str, ...] = ()
    still: float = 0.0
    held: Held | None = None


class Meter:
    """Thread-safe counters of one step.

    ``shown_by`` is the meter of the step if this one counts the requests of a probe: it shows their retries.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, shown_by: Meter | None = None) -> None:
        self._shown_by = shown_by
        self._lock = threading.Lock()
        self._clock = clock
        self._held: tuple[Held, float] | None = None
        self._now = Snapshot()
        self.requests = 0
        self.retries = 0
        self.times: Counter[int] = Counter()
        self._restart()

    def _restart(self) -> None:
        self._started = self._moved = self._clock()
        self._total: int | None = None
        self._stored = self._skipped = 0
        self._told: float | None = None
        self._samples = deque([(self._started, 0, 0.0)])

    def begin(self, message: str) -> None:
        """Begin another phase of the step. Files, bytes, rate, fraction and time left start anew."""
        with self._lock:
            self._now = Snapshot(message=message, stands=self._now.stands, warnings=self._now.warnings)
            self._restart()

    def expect(self, *, files: int | None = None, bytes: int | None = None) -> None:  # noqa: A002
        """Set how much there is to do, as far as it is known; ``bytes`` are those of the stored files."""
        with self._lock:
            self._now.files_total = files if files is not None else self._now.files_total
            self._total = bytes if bytes is not None else self._total

    def add(self, *, files: int = 0, bytes: int = 0, resources: int = 0, stored: int | None = None) -> None:  # noqa: A002
        """Count finished work: ``bytes`` of content, and the ``stored`` bytes of the file (by default the same)."""
        with self._lock:
            self._now.files += files
            self._now.bytes += bytes
            self._now.resources += resources
            self._stored += bytes if stored is None else stored
            self._sample()

    def read(self, piece: bytes) -> None:
        """Count the stored bytes of a piece of a file. Its content is counted later, when it is processed."""
        self.add(stored=len(piece))

    def skip(self, *, files: int = 0, resources: int = 0, stored: int = 0) -> None:
        """Count the work of an earlier run. It does not change the rate."""
        with self._lock:
            self._now.files += files
            self._now.resources += resources
            self._stored += stored
            self._skipped += stored

    def warn(self, text: str) -> None:
        """Show a warning on the terminal at once, and write it to the log."""
        with self._lock:
            self._now.warnings += (text,)
        logger.warning("%s", text)

    def set_status(self, message: str | None = None, *, fraction: float | None = None, stands: bool = False) -> None:
        """Set the short text (empty: none; ``None``: as before), and the fraction done (0…1) if a service reports one.
        ``stands``: the service makes no progress now."""
        with self._lock:
            self._now.stands = stands
            if message is not None:
                self._now.message = message or None
            if fraction is not None:
                if self._told is None:  # a service may have been at work before this run
                    self._samples = deque([(self._clock(), self._now.bytes, fraction)])
                self._told = fraction
                self._sample()

    def snapshot(self) -> Snapshot:
        """Return the counters now."""
        with self._lock:
            now, known = self._clock(), self._now
            counts = known.bytes or self._total or known.files_total
            still = now - self._moved if counts else 0.0
            quiet = known.stands or still >= STILL
            fraction = self._fraction()
            return replace(
                known,
                seconds=now - self._started,
                rate=0.0 if quiet else self._rate(now),
                fraction=fraction,
                eta_seconds=None if quiet or fraction is None else self._seconds_left(now, fraction),
                still=still,
                held=self._next_try(now),
            )

    def _fraction(self) -> float | None:
        """Return the share done (0…1): as the service reports it, else by bytes, else by files; ``None`` if unknown."""
        if self._told is not None:
            return self._told
        if self._total:
            return min(1.0, self._stored / self._total)
        return min(1.0, self._now.files / self._now.files_total) if self._now.files_total else None

    def _done(self) -> float:
        """Return the share that this run has done."""
        return (self._fraction() or 0.0) - (self._skipped / self._total if self._total else 0.0)

    def _sample(self) -> None:
        self._moved = self._clock()
        if self._moved - self._samples[-1][0] >= _FIRST:
            self._samples.append((self._moved, self._now.bytes, self._done()))
        while len(self._samples) > 1 and self._samples[1][0] <= self._moved - _WINDOW:
            self._samples.popleft()

    def _rate(self, now: float) -> float:
        at, content, _ = self._samples[0]
        return (self._now.bytes - content) / (now - at) if now > at else 0.0

    def _seconds_left(self, now: float, fraction: float) -> float | None:
        at, _, done = self._samples[0]
        grown = self._done() - done
        return (now - at) * (1 - fraction) / grown if now - at >= _FIRST and grown > 0 and fraction < 1 else None

    def _next_try(self, now: float) -> Held | None:
        """Return the request that failed last; ``None`` if there was progress after its next try began."""
        held, until = self._held or (None, 0.0)
        return replace(held, seconds=max(0.0, until - now)) if held is not None and self._moved <= until else None

    def request(self, seconds: float, *, repeated: bool = False) -> None:
        """Count one request that took ``seconds``."""
        self.count(1, int(repeated), Counter((math.ceil(math.log(max(seconds, 1e-6), _BASE)),)))

    def count(self, requests: int, retries: int, times: Counter[int]) -> None:
        """Count requests, also those of another process; ``times`` is the histogram of their times."""
        with self._lock:
            self.requests += requests
            self.retries += retries
            self.times.update(times)

    def retry(self, held: Held) -> None:
        """Show that a request failed and is made again."""
        with self._lock:
            self._held = held, self._clock() + held.seconds
        if self._shown_by is not None:
            self._shown_by.retry(held)

    def percentile(self, share: float) -> float | None:
        """Return the time in seconds that ``share`` (0…1) of the requests did not exceed, to within 5 %."""
        with self._lock:
            seen = 0
            for bucket in sorted(self.times):
                seen += self.times[bucket]
                if seen >= share * self.requests:
                    return float(_BASE**bucket)
            return None

    def statistics(self) -> dict[str, int | float | None]:
        """Return ``requests``, ``retries``, ``p50`` and ``p95`` of a ``StepReport``; none without a request."""
        if not self.requests:
            return {}
        p50, p95 = self.percentile(0.5), self.percentile(0.95)
        return {"requests": self.requests, "retries": self.retries, "p50": p50, "p95": p95}
