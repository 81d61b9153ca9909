"""The stop flag of a run: signals and cancels set it, and the steps check it between chunks."""

from __future__ import annotations

import threading

from tasks.shared.errors import Stopped

_SLICE = 0.25
"""Seconds between two checks of the run's own stop while sleeping."""


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
    """The stop of several threads that work together: set by the stop of the ``run``, or when one thread fails."""

    def __init__(self, run: Stop) -> None:
        super().__init__()
        self.run = run

    def check(self) -> None:
        """Raise ``Stopped`` if the run is to stop or another thread has failed."""
        self.run.check()
        super().check()

    def sleep(self, seconds: float) -> None:
        """Sleep, or raise ``Stopped`` as soon as ``check`` would."""
        left = seconds
        while left > 0:
            self.run.check()
            super().sleep(min(left, _SLICE))
            left -= _SLICE
        self.check()
