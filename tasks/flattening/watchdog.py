"""Watch whether the service is alive while a request runs (document 3 §5).

A flattening request is silent for minutes while the service works, and just as silent when the service is gone. So
every 30 s ``/fhir/metadata`` is asked for; three failures in a row cancel what runs. An answer is a sign of life unless
it is 5xx.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Self

from tasks.shared.errors import SluiceError, Stopped, TransientError

INTERVAL: Final = 30.0
"""Seconds between two questions."""

ALLOWED: Final = 3
"""Failures in a row after which a request is cancelled."""

log = logging.getLogger("sluice.flattening")


@dataclass(eq=False)
class Watched:
    """A request that runs."""

    cancel: Callable[[], None]
    failures: int = 0
    silent: bool = False
    """It was cancelled because the service stopped answering."""


class Watchdog:
    """Calls ``ask`` (it raises when there is no sign of life) while anything is watched. Leaving its context ends it.

    ``interval`` in seconds.
    """

    def __init__(self, ask: Callable[[], None], *, interval: float) -> None:
        self._probe = ask
        self._interval = interval
        self._watched: list[Watched] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def watch(self, cancel: Callable[[], None]) -> Iterator[Watched]:
        """Watch a request while the block runs. ``cancel`` is called in another thread, at most once."""
        watched = Watched(cancel)
        with self._lock:
            self._watched.append(watched)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sluice-watchdog", daemon=True)
                self._thread.start()
        try:
            yield watched
        finally:
            with self._lock:
                if watched in self._watched:
                    self._watched.remove(watched)

    def check_service(self) -> None:
        """Check the service once, and cancel the requests that must end."""
        with self._lock:
            before = list(self._watched)
        if not before:
            return
        alive = self._alive()
        with self._lock:
            for watched in before:
                watched.failures = 0 if alive else watched.failures + 1
                watched.silent = watched.failures >= ALLOWED
                if watched in self._watched and watched.silent:
                    self._watched.remove(watched)
                    watched.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        left = self._interval
        while not self._ended.wait(left):
            started = time.monotonic()
            try:
                self.check_service()
            except Stopped:
                return  # whoever is watched is stopped by the same
            left = max(0.0, self._interval - (time.monotonic() - started))

    def _alive(self) -> bool:
        try:
            self._probe()
        except TransientError as error:
            status = f"status {error.status}" if error.status else error.reference
            log.warning("flattening: the service does not answer for its metadata (%s)", status)
            return False
        except SluiceError:
            return True  # an answer, whatever it says
        return True
