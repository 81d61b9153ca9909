"""The proof that the machine which had a job is dead: one whole lease without a sign of life, watched without a gap.

A holder that lives gives a sign (the lease renewed, or the heartbeat written) within ``LeaseTimes.give_up``, or ends;
``give_up`` is shorter than ``lease``. So when the server answered every look, and in one whole lease by this machine's
own monotonic clock neither sign came, the holder has ended, or it does not run (a machine that sleeps): then it finds
out when it wakes, before its next request. Clocks of two machines are never compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from flows.engine.api import Json
from flows.job.running.heartbeat import Heartbeat
from tasks.shared.errors import NetworkError


@dataclass(frozen=True)
class LeaseTimes:
    """The times of a lease, in seconds.

    A holder renews the lease every ``renew``, after a failure every ``retry``, and writes its heartbeat every ``beat``.
    Without a sign of life for ``give_up`` it ends, the last ``sure`` of them making sure once more; the calls under way
    then, of ``call`` a phase, are over before ``lease`` is. Who would take over watches both for one whole ``lease``,
    the server every ``look``; when it answers ``gap`` after the look before, the watch begins anew.
    """

    lease: float = 60.0
    renew: float = 15.0
    retry: float = 3.0
    beat: float = 5.0
    give_up: float = 45.0
    sure: float = 10.0
    call: float = 5.0
    look: float = 3.0
    gap: float = 12.0


class LeaseTakenError(Exception):
    """Another machine has the lease."""


class Watch:
    """Looks for a sign of life of a job's holder. ``look`` asks the server for the limit of that name, once; it
    may be away for ``patience`` seconds, after which the watch begins anew.

    ``clock`` and ``sleep`` are seams for tests.
    """

    def __init__(
        self,
        look: Callable[[str], Json | None],
        heartbeat: Heartbeat | None,
        times: LeaseTimes,
        *,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._look = look
        self._heartbeat = heartbeat
        self._times = times
        self._patience = patience
        self._clock = clock
        self._sleep = sleep

    def silent(self, found: Json | None, name: str) -> Json | None:
        """The limit as it was read last, when nobody gave a sign for a whole lease; ``found`` is it as it is now.

        Raises:
            LeaseTakenError: somebody gave one.
            NetworkError: the server did not answer for ``patience``.
            OSError: the job's directory cannot be read.
        """
        times = self._times
        row, beat = _of(found), self._beat()
        answered = self._clock()
        begun: float | None = answered
        while True:
            self._sleep(min(1.0, times.look))
            if self._beat() != beat:
                raise LeaseTakenError
            before = self._clock()
            if before - answered < times.look:
                continue
            try:
                found = self._look(name)
            except NetworkError:
                begun = None
                if before - answered > self._patience:
                    raise
                continue
            if _of(found) != row:
                raise LeaseTakenError
            now = self._clock()
            if begun is None or now - answered > times.gap:
                begun = now
            answered = now
            if now - begun >= times.lease:
                return found

    def _beat(self) -> bytes | None:
        return self._heartbeat.read() if self._heartbeat is not None else None


def _of(found: Json | None) -> tuple[str, str] | None:
    return None if found is None else (str(found["id"]), str(found["updated"]))
