"""The time left of a step, estimated from how fast its fraction grew."""

from __future__ import annotations

from collections import deque
from typing import Final

_MINUTE: Final = 60.0
"""Seconds: the time left is at least what the rate of the last minute allows (``4-product.md`` §5)."""

_FIRST: Final = 1.0
"""Seconds after which a rate is known."""

_SAMPLES_EVERY: Final = 0.5
"""Seconds between two samples of the fraction that are kept."""

_ROUNDING: Final = 1e-9
"""A fraction grows by more than this."""


class TimeEstimate:
    """The time left of a step, estimated from the moments at which its fraction grew.

    Between two such moments the estimate counts down, and after a pause that is longer than the usual ones there is
    none. At a constant rate it never grows, also when every part takes seconds.
    """

    def __init__(self, at: float, fraction: float = 0.0) -> None:
        self._start = self._last = at, fraction
        self._samples: deque[tuple[float, float]] = deque([self._start])
        self._gap = 0.0

    def grow(self, at: float, fraction: float) -> None:
        """Note that ``fraction`` (0…1) was done at the time ``at``, in seconds."""
        if fraction - self._last[1] > _ROUNDING:
            self._gap = max(self._gap, at - self._last[0])
            self._last = at, fraction
            if at - self._samples[-1][0] >= _SAMPLES_EVERY:
                self._samples.append(self._last)
            while len(self._samples) > 1 and self._samples[1][0] <= at - _MINUTE:
                self._samples.popleft()

    def skip(self, share: float) -> None:
        """Note that a ``share`` of the step is done that took this run no time."""
        self._start = self._start[0], self._start[1] + share
        self._last = self._last[0], self._last[1] + share
        self._samples = deque((at, fraction + share) for at, fraction in self._samples)

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds left, or ``None`` before a rate is known, at the end, and when the estimate is used up."""
        at, fraction = self._last
        idle = now - at
        if at - self._start[0] < _FIRST or fraction >= 1 or idle > 1.5 * self._gap + _FIRST:
            return None
        since = [one for one in (self._start, self._samples[0]) if one[1] < fraction]
        left = max((at - before) * (1 - fraction) / (fraction - done) for before, done in since)
        return left - idle if idle < left else None
