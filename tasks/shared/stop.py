"""A polite way to stop: signals and cancels set it, the steps look at it between chunks."""

from __future__ import annotations

import threading

from tasks.shared.errors import Stopped

_SLICE = 0.25
"""Seconds between two looks at the run's own stop while sleeping."""


class Stop:
    """Set once, from a signal handler or a watcher thread; seen by every thread of a run."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason: str | None = None

    def request(self, reason: str) -> None:
        """Ask the run to stop. The first reason wins."""
        if self.reason is None:
            self.reason = reason
        self._event.set()

    @property
    def requested(self) -> bool:
        """Return whether a stop was requested."""
        return self._event.is_set()

    def check(self) -> None:
        """Raise ``Stopped`` if a stop was requested. Cheap: call it for every chunk, line or request."""
        if self._event.is_set():
            raise Stopped(self.reason or "stopped")

    def sleep(self, seconds: float) -> None:
        """Sleep, or raise ``Stopped`` as soon as a stop is requested."""
        if self._event.wait(seconds):
            raise Stopped(self.reason or "stopped")


class SharedStop(Stop):
    """A stop for work done together: set by the ``run``'s stop, or by the first of the others that failed."""

    def __init__(self, run: Stop) -> None:
        super().__init__()
        self.run = run

    def check(self) -> None:
        """Raise ``Stopped`` when the run is to stop, or another one failed."""
        self.run.check()
        super().check()

    def sleep(self, seconds: float) -> None:
        """Sleep, or raise ``Stopped`` as soon as one of both asks."""
        left = seconds
        while left > 0:
            self.run.check()
            super().sleep(min(left, _SLICE))
            left -= _SLICE
        self.check()
