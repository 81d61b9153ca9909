"""Counters of a running step: files, bytes, resources, requests and progress. ``tasks/`` never reads them.

A step calls ``meter.add(...)`` and depends on neither terminal nor Prefect. A progress display takes a ``snapshot()``
at any time (a bar, a plain line per minute, an artifact).
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
from tasks.shared.files.data_directory import ZST
from tasks.shared.files.ndjson import pieces
from tasks.shared.log import logger
from tasks.shared.time_estimate import TimeEstimate

_PARTS: Final = 256
"""Into how many parts of a file its progress is divided at most."""

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

    ``bytes`` are bytes of content, also where files are compressed, and ``earlier`` those of them that an earlier run
    did. ``stands`` says that nothing moves on the other
    side. ``eta_seconds`` are the seconds left. ``warnings`` are what a person should see while the step runs, in order.
    ``still`` is for how long nothing was done, where the step counts what it does; ``held`` the request that is tried
    again next, if one is.
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
    eta_seconds: float | None = None
    warnings: tuple[str, ...] = ()
    still: float = 0.0
    held: Held | None = None
    earlier: int = 0

    @property
    def content(self) -> int:
        """Return the bytes of content processed in this run of the step."""
        return self.bytes - self.earlier

    @property
    def rate(self) -> float:
        """Return bytes of content per second of this run."""
        return self.content / self.seconds if self.seconds > 0 else 0.0


class Meter:
    """Thread-safe counters of one step.

    ``shown_by`` is the meter of the step whose line shows the retries of this one, which counts apart.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, shown_by: Meter | None = None) -> None:
        self._shown_by = shown_by
        self._lock = threading.Lock()
        self._clock = clock
        self._started = clock()
        self._now = Snapshot()
        self._pace = TimeEstimate(self._started)
        self._stored: dict[Path, int] = {}
        self._content: dict[Path, int] = {}
        self._ratios: dict[Path, float] = {}
        self._done = self._earlier = 0.0
        self._read = self._out = self._in = 0
        self._moved = self._started
        self._held: dict[int, tuple[Held, float]] = {}
        self.requests = 0
        self.retries = 0
        self._buckets: dict[int, int] = {}

    def expect(self, *, files: int | None = None, bytes: int | None = None) -> None:  # noqa: A002
        """Say how much there is to do, as far as it is known."""
        with self._lock:
            self._now.files_total = files if files is not None else self._now.files_total
            self._now.bytes_total = bytes if bytes is not None else self._now.bytes_total

    def work_on(self, files: Iterable[Path]) -> None:
        """Say which files are worked on, one after the other: how far it is goes by their sizes on disk, because the
        size of compressed content is not known beforehand. Raises ``StorageError``.
        """
        for path in files:
            with storage_errors(path):
                self._stored[path] = max(1, path.stat().st_size)
        self.expect(files=len(self._stored), bytes=sum(self._stored.values()))

    def within(self, path: Path, content: int, *, whole: bool = False, earlier: bool = False) -> None:
        """Say that ``content`` bytes of a file are done; ``whole`` when that is all of it, ``earlier`` when an earlier
        run did it. Cheap to call often.
        """
        stored, before = self._stored[path], self._content.get(path, 0)
        if path not in self._ratios:
            self._ratios[path] = _ratio(path, stored) if content and not whole else 1.0
        ratio = self._ratios[path]
        if not whole and content - before < stored * ratio / _PARTS:
            return
        self._content[path] = content
        done = (stored if whole else min(stored, content / ratio)) - min(stored, before / ratio)
        self.advance(done, content - before, earlier=earlier)

    def advance(self, stored: float, content: int, *, earlier: bool = False) -> None:
        """Count ``stored`` bytes of files as done, whose content was ``content`` bytes; ``earlier``: by an earlier
        run.
        """
        with self._lock:
            self._done += stored
            self._read += content
            if earlier:
                self._earlier += stored
                self._now.earlier += content
                self._pace.skip(stored / (self._now.bytes_total or stored or 1))
            self._grow()

    def hand_out(self, count: int) -> None:
        """Note that ``count`` resources that were read wait for an answer, and are not done before ``hand_in``.

        What was read before the first of them needed no answer: an earlier run did it.
        """
        with self._lock:
            if count and not self._out:
                self._earlier, self._now.earlier = self._done, self._read
                self._pace = TimeEstimate(self._clock(), self._now.fraction or 0.0)
            self._out += count

    def hand_in(self, count: int) -> None:
        """Note that ``count`` resources that were handed out are done."""
        with self._lock:
            self._in += count
            self._grow()

    def _grow(self) -> None:
        """Set bytes and fraction from what was read of the files without what waits for an answer."""
        self._moved = self._clock()
        answered = min(1.0, self._in / self._out) if self._out else 1.0
        earlier = self._now.earlier
        self._now.bytes = earlier + int((self._read - earlier) * answered)
        if self._now.bytes_total:
            done = self._earlier + (self._done - self._earlier) * answered
            self._now.fraction = min(1.0, done / self._now.bytes_total)
            self._pace.grow(self._moved, self._now.fraction)

    def add(self, *, files: int = 0, bytes: int = 0, resources: int = 0, earlier: bool = False) -> None:  # noqa: A002
        """Count what was just done, or was done by an ``earlier`` run."""
        with self._lock:
            before = _share(self._now) or 0.0
            self._now.files += files
            self._now.bytes += bytes
            self._now.earlier += bytes if earlier else 0
            self._now.resources += resources
            self._moved = self._clock()
            if self._now.fraction is None and (fraction := _share(self._now)) is not None:
                if earlier:
                    self._pace.skip(fraction - before)
                self._pace.grow(self._moved, fraction)

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

    def set_status(self, message: str | None = None, *, fraction: float | None = None, stands: bool = False) -> None:
        """Set the short text, which an empty one takes back, and, where a service reports one, the fraction done (0…1);
        it ``stands`` while nothing moves."""
        with self._lock:
            now = self._now
            now.stands = stands
            if message is not None:
                now.message = message or None
            if fraction is not None:
                if now.fraction is None:  # a service may have been at work before this run
                    self._pace = TimeEstimate(self._clock(), fraction)
                now.fraction = fraction
                self._pace.grow(self._clock(), fraction)

    def begin(self, message: str) -> None:
        """Begin another phase of the step: rate, fraction and what is left of it count from here."""
        with self._lock:
            self._started = self._moved = self._clock()
            self._pace = TimeEstimate(self._started)
            self._now = Snapshot(message=message, stands=self._now.stands, warnings=self._now.warnings)

    def snapshot(self) -> Snapshot:
        """Return the counters now."""
        with self._lock:
            now = self._clock()
            known = self._now
            still = now - self._moved
            counts = known.bytes or known.bytes_total or known.files_total
            return replace(
                known,
                seconds=now - self._started,
                fraction=_share(known) if known.fraction is None else known.fraction,
                eta_seconds=None if known.stands or (counts and still >= STILL) else self._pace.seconds_left(now),
                still=still if counts else 0.0,
                held=self._next_try(now),
            )

    def _next_try(self, now: float) -> Held | None:
        """Return the next waiting request; requests under way again are dropped once something was done."""
        for thread, (_, until) in [*self._held.items()]:
            if self._moved > until:
                del self._held[thread]
        if not self._held:
            return None
        held, until = min(self._held.values(), key=lambda held: held[1])
        return replace(held, seconds=max(0.0, until - now), others=len(self._held) - 1)

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

    def retry(self, service: str, error: BaseException | None, *, attempt: int, attempts: int, seconds: float) -> None:
        """Show that a request failed for now and is made again after ``seconds``, until something is done after that;
        ``attempt`` of ``attempts`` has failed.
        """
        why = str(getattr(error, "status", None) or getattr(error, "reference", type(error).__name__))
        with self._lock:
            until = self._clock() + seconds
            self._held[threading.get_ident()] = Held(service, why, seconds, attempt + 1, attempts), until
        if self._shown_by is not None:
            self._shown_by.retry(service, error, attempt=attempt, attempts=attempts, seconds=seconds)

    def percentile(self, share: float) -> float | None:
        """Return the time in seconds that ``share`` (0…1) of the requests did not exceed, to within 5 %."""
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


def _share(known: Snapshot) -> float | None:
    """Return the fraction by bytes, or by files where no bytes are known."""
    if known.bytes_total:
        return min(1.0, known.bytes / known.bytes_total)
    return min(1.0, known.files / known.files_total) if known.files_total else None


def _ratio(path: Path, stored: int) -> float:
    """Content to stored size of a file, from the content of its first piece; 1 for one that is not compressed."""
    if path.suffix.lower() != ZST:
        return 1.0
    read: list[int] = []
    content = 0
    for piece in pieces(path, stored=lambda data: read.append(len(data))):
        if len(read) > 1:
            break
        content += len(piece)
    return max(1.0, content / (read[0] if len(read) > 1 else stored))
