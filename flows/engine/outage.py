"""Outages of a shared Prefect API: how long a running job waits to write its record.

The work of a step needs no server. So a running job bridges ``BRIDGE`` seconds of one outage, over all its calls;
commands that have not begun a job wait for less (``4-product.md`` §6). An outage of the jobs directory's own server is
never bridged: it ends with its machine (``flows/engine/server/watch.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tasks.shared.log import logger
from tasks.shared.units import human_seconds

BRIDGE = 900.0
"""Seconds that a running job does without the API; after that it stops between two files (exit code 3)."""

TELL_AFTER = 2.0
"""Seconds of an outage before it is reported: a server may be busy, or its database locked."""

ANSWERED = 3
"""After this many other answers and ``REFUSED`` seconds, the API is up and only this one call fails."""
REFUSED = 20.0


class Outage:
    """State of one API as seen by all calls of this process. Thread-safe; logs an outage once, and its end once."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._told = False
        self.happened = False
        """True after a reported outage."""
        self._answers = 0
        self._lock = threading.Lock()

    def failed(self, lasted: float = 0.0) -> None:
        """Record that a call was not answered, or with 5xx, after ``lasted`` seconds."""
        with self._lock:
            now = self._clock()
            self._since = now - lasted if self._since is None else self._since
            tell = not self._told and now - self._since >= TELL_AFTER
            self._told = self._told or tell
            self.happened = self.happened or tell
        if tell:
            logger.warning(
                "the Prefect API does not answer: the job continues, and its record waits for %s at most",
                human_seconds(BRIDGE),
            )

    def answered(self) -> None:
        """Record that a call was answered."""
        with self._lock:
            self._answers += 1
            since, told = self._since, self._told
            self._since, self._told = None, False
            now = self._clock()
        if since is not None and told:
            logger.warning("the Prefect API answers again, after %s", human_seconds(now - since))

    @property
    def over(self) -> bool:
        """Return whether the outage has lasted too long."""
        with self._lock:
            return self._since is not None and self._clock() - self._since >= BRIDGE

    def begin(self) -> Callable[[], bool]:
        """Return a function that returns whether the call that begins now should be given up."""
        begun, answers = self._clock(), self._answers

        def hopeless() -> bool:
            waited = self._clock() - begun
            alone = self._answers - answers >= ANSWERED and waited >= REFUSED
            return self.over or alone or waited >= BRIDGE

        return hopeless


_known: dict[str, Outage] = {}


def given_up() -> bool:
    """Return whether an API of this process has been away for too long, and still is."""
    return any(found.over for found in _known.values())


def outage_of(url: str) -> Outage:
    """Return the outage shared by all callers of the API at ``url``."""
    return _known.setdefault(url.rstrip("/"), Outage())
