"""The lock of a job across machines: a Prefect global concurrency limit ``job-<id>`` with a lease, and a heartbeat.

``4-product.md`` §6. ``flock`` (``lock.py``) holds between the processes of one machine; machines share
only the Prefect API and the job's directory. The limit has one slot, which is taken as long as the limit exists:
creating the limit takes the lock (names are unique), removing it by its id releases the lock. Its
``updated`` time is the lease, which the holder renews. Prefect's database keeps it over a restart of the server.

A server may be away for longer than any lease while its jobs continue, so the holder gives two signs of life: it renews
the lease, and it writes the heartbeat file (``proof.py``). It continues as long as one of both was written in the last
``LeaseTimes.give_up`` seconds, and tries both once more before it ends, because a machine that only slept is late with
both. A successor watches both for a whole lease (``proof.py``), removes the limit by id, makes a new one and writes its
name into ``.lock``. A holder that was away finds that name, before each request to a service and before each heartbeat,
or finds its limit replaced, and ends at once.
``docs/decisions/0032-two-signs-of-life.md`` has the proof.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Self

import httpx

from flows.engine.api import Json, NotTakenError, PrefectApi
from flows.engine.api_address import ApiAddress, configured_api
from flows.engine.outage import BRIDGE
from flows.engine.reached import own_server
from flows.job.running.proof import Heartbeat, LeaseTakenError, LeaseTimes, beats, watch_for_silence
from flows.output import patience
from tasks.shared.errors import NetworkError, SluiceError, TransientError
from tasks.shared.log import logger

TIMES = LeaseTimes()

BUSY = 8
"""Times that a limit is tried to be removed, half a second apart, while the database is busy."""

PATIENCE = 12.0
"""Seconds for which a command that watches for a sign of life does without the server."""


def clock() -> float:
    """Return seconds for a holder, including those in which its machine slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class LeaseLostError(TransientError):
    """The lease is lost: another machine may run the job by now (exit code 3)."""


def lease_api(jobs_dir: Path) -> ApiAddress | None:
    """Return the Prefect API that other machines may share; ``None`` for the embedded one of this machine."""
    address = configured_api()
    return None if address is None or own_server(jobs_dir, address.url) else address


class Limits(PrefectApi):
    """Client for Prefect's global concurrency limits."""

    def find(self, name: str) -> Json | None:
        """Return the limit of that name, or ``None``."""
        found: Json | None = self.request("GET", f"/v2/concurrency_limits/{name}")
        return found

    def find_quickly(self, name: str) -> Json | None:
        """Return the limit of that name, or ``None``, without retries and with a short timeout."""
        with self.hurried(TIMES.call):
            return self.find(name)

    def create(self, name: str) -> str | None:
        """Create a limit with its one slot taken. Return its id, or ``None`` if the name exists."""
        body = {"name": name, "limit": 1, "active_slots": 1}
        try:
            return self.created("/v2/concurrency_limits/", body)
        except SluiceError as error:
            if error.status == 409:
                return None
            raise

    def renew(self, limit: str) -> bool:
        """Renew the lease; ``False`` when the limit is gone. ``PATCH`` sets ``updated`` though nothing changes."""
        return self.request("PATCH", f"/v2/concurrency_limits/{limit}", {"active_slots": 1}) is not None

    def remove(self, limit: str) -> bool:
        """Remove the limit with that id; ``False`` when it is gone already."""
        return self.request("DELETE", f"/v2/concurrency_limits/{limit}") is not None

    def remove_soon(self, limit: str) -> None:
        """Remove the limit like ``remove``, with retries for a moment if the database is busy."""
        for left in reversed(range(BUSY)):
            try:
                self.remove(limit)
            except NotTakenError as error:
                if not left or error.status != 503:
                    raise
                time.sleep(0.5)
            else:
                return

    def now(self) -> datetime:
        """Return the time on the server's clock, which sets ``updated``: clocks of two machines differ.

        Raises:
            NetworkError: the server does not answer, or without a time.
        """
        try:
            return parsedate_to_datetime(self._client.get("/health").headers["date"])
        except (httpx.HTTPError, KeyError, ValueError) as error:
            raise NetworkError(
                "prefect-unreachable", f"the Prefect API does not tell the time ({type(error).__name__})",
                context=self.address.shown, hint="check the Prefect server and any proxy in between",
            ) from None  # fmt: skip

    def holds(self, found: Json, times: LeaseTimes) -> bool:
        """Return whether the lease was renewed in time by the server's clock. For display only."""
        age = self.now() - datetime.fromisoformat(str(found["updated"]))
        return age.total_seconds() < times.lease


def limit_name(job_id: str) -> str:
    """Return the name of a job's limit."""
    return f"job-{job_id}"


def is_leased(address: ApiAddress, directory: Path) -> bool:
    """Return whether a machine gives a sign of life for the job of that directory."""
    with Limits(address) as limits:
        found = limits.find(limit_name(directory.name))
        return (found is not None and limits.holds(found, TIMES)) or beats(directory, TIMES.lease)


def lease_lost(message: str, name: str) -> LeaseLostError:
    """Return the error of a holder whose lease is gone."""
    return LeaseLostError(
        "job-lease-lost", message, context=name, hint="see pipeline status, and continue the job if it is interrupted"
    )


WORKERS_RUN = "PREFECT__FLOW_RUN_ID"
"""Set in a process that a Prefect worker has started for a run."""


def end_process(error: SluiceError) -> None:
    """End this process like ``kill -9``: another machine may have the job, so nothing more may be written.

    A worker sets a run whose process ends with an exit code to Crashed, but not after a kill: the state of this run
    belongs to the other machine.
    """
    with suppress(OSError, ValueError):
        logger.error("%s", error.render())  # into job.log
        sys.stderr.write(error.render() + "\n")
        sys.stderr.flush()
        for handler in logging.getLogger().handlers + logger.handlers:
            handler.flush()
    os._exit(0 if WORKERS_RUN in os.environ else error.exit_code)


class Lease:
    """The lease of one job and its heartbeat, each renewed in a separate thread until the release, so that a hanging
    server or directory does not delay the other one.

    ``lost`` is called in one of these threads when another machine may have the job. It must not let the process
    continue.
    """

    def __init__(
        self,
        address: ApiAddress,
        job_id: str,
        directory: Path | None = None,
        *,
        lost: Callable[[SluiceError], None] | None = None,
        times: LeaseTimes | None = None,
        bridges: bool = False,
        clock: Callable[[], float] = clock,
    ) -> None:
        times = times or TIMES
        self.name = limit_name(job_id)
        self.limit: str | None = None
        self._limits = Limits(address, bridges=bridges)
        self._patience = BRIDGE if bridges else PATIENCE
        self._renewing = Limits(address, timeout=times.call, patience=0)
        self._heartbeat = Heartbeat(directory) if directory is not None else None
        self._still_ours: Callable[[], bool] = lambda: True
        self._rename: Callable[[str], None] = lambda _: None
        self._lost = lost or end_process
        self._times = times
        self._clock = clock
        self._end = threading.Event()
        self._now = (threading.Event(), threading.Event())
        self._threads = [
            threading.Thread(target=work, name=f"{what}-{job_id}", daemon=True)
            for what, work in (("lease", self._renew_until_end), ("signs", self._judge))
        ]
        if self._heartbeat is not None:
            beat = threading.Thread(target=self._beat, args=(self._heartbeat,), name=f"heartbeat-{job_id}", daemon=True)
            self._threads.append(beat)
        self._sign = 0.0
        self._maybe_made = False

    def acquire(self, known: str | None = None, *, before: str | None = None) -> Self:
        """Take the lease; ``known`` is the limit of a holder on this machine that is certainly gone. ``before`` is one
        on another machine that has not released the job: then a missing limit proves nothing.

        Raises:
            LeaseTakenError: another machine has it.
            SluiceError: the Prefect API does not answer, or refuses.
            OSError: the job's directory cannot be read.
        """
        try:
            self._sign = self._clock()
            self.limit = known if known is not None and self._limits.renew(known) else self._acquire_limit(before)
        except BaseException:
            self._close()
            raise
        return self

    def hold(self, still_ours: Callable[[], bool] | None = None, rename: Callable[[str], None] | None = None) -> None:
        """Renew the lease from now on.

        For the file that names the holder, if any: ``still_ours`` returns whether it names this process,
        ``rename`` writes another limit into it. Both raise ``OSError`` if the file cannot be read or written.
        """
        self._still_ours = still_ours or self._still_ours
        self._rename = rename or self._rename
        for thread in self._threads:
            thread.start()

    def _acquire_limit(self, before: str | None) -> str:
        attempts = 1
        if before is None:
            try:
                if (limit := self._limits.create(self.name)) is not None:
                    return limit  # as nearly always: it was free
            except NotTakenError:
                raise
            except NetworkError as error:
                # A limit created without an answer has no holder: it is replaced like a dead holder's, even if the
                # server creates it only after the search for it.
                logger.warning("the lease of the job is asked for again: %s", error.message)
                attempts = 2
        for _ in range(attempts):
            found = self._limits.find(self.name)
            if found is not None or before is not None:
                look = partial(self._limits.find_quickly, self.name)
                who = before or "whoever has the job"
                with patience(f"waiting for a sign of life of {who}, {self._times.lease:.0f} s at most"):
                    found = watch_for_silence(found, look, self._heartbeat, self._times, patience=self._patience)
                if found is not None:
                    self._limits.remove(str(found["id"]))
            self._sign = self._clock()
            if (limit := self._limits.create(self.name)) is not None:
                return limit
        raise LeaseTakenError

    @property
    def late(self) -> bool:
        """True if no sign of life was given in time; another machine may then have the job."""
        return self._clock() - self._sign > self._times.give_up

    def lose(self, message: str) -> LeaseLostError:
        """Give the job up."""
        error = lease_lost(message, self.name)
        if not self._end.is_set():
            self._end.set()
            self._lost(error)
        return error

    def _renew_until_end(self) -> None:
        """Renew the lease."""
        wait = self._times.renew
        while not self._over(0, wait):
            begun = self._clock()
            try:
                if not self._renewing.renew(str(self.limit)) and not self._made_again():
                    self.lose("the lease is gone: another machine may run the job")
                    return
            except (SluiceError, OSError) as error:
                if wait == self._times.renew:
                    logger.warning("the lease of the job is not renewed: %s", _failure_text(error))
                wait = self._times.retry
                continue
            self._sign, wait = max(self._sign, begun), self._times.renew

    def _made_again(self) -> bool:
        """Create the limit again if it is gone but the job was not taken, for example after a database restore."""
        if self._heartbeat is None or not self._still_ours():
            return False
        try:
            made = self._renewing.create(self.name)
        except NetworkError:
            self._maybe_made = True
            raise
        if made is None and self._maybe_made:
            found = self._renewing.find(self.name)  # made by the call that was not answered
            made = str(found["id"]) if found is not None else None
        self._maybe_made = False
        if made is None or not self._still_ours():
            return False
        self.limit = made
        self._rename(made)
        logger.warning("the lease of the job was missing at the Prefect API; it was created again")
        return True

    def _beat(self, heartbeat: Heartbeat) -> None:
        """Write the heartbeat, as long as the job is ours."""
        said = False
        while True:
            begun = self._clock()
            try:
                if not self._still_ours():
                    self.lose("another machine has taken the job")
                    return
                heartbeat.beat(str(self.limit))
            except OSError as error:
                # A missing directory was removed deliberately: a prune reports it.
                if not said and not isinstance(error, FileNotFoundError):
                    logger.warning("the heartbeat of the job is not written: %s", _failure_text(error))
                said = True
            else:
                self._sign, said = max(self._sign, begun), False
            if self._over(1, self._times.beat):
                return

    def _judge(self) -> None:
        """End the process when both signs of life are late, even if a thread hangs."""
        tick = min(1.0, self._times.sure / 4)
        while not self._end.wait(tick):
            if self._clock() - self._sign > self._times.give_up - self._times.sure and not self._sure(tick):
                self.lose("neither the Prefect API nor the job's directory could be reached in time")
                return

    def _sure(self, tick: float) -> bool:
        """Request a sign of life and wait for it, counted in ticks: the time a machine slept does not count."""
        asked = self._clock()
        for event in self._now:
            event.set()
        left = self._times.sure
        while left > 0:
            if self._end.wait(tick) or self._sign >= asked:
                return True
            left -= tick
        return False

    def _over(self, which: int, seconds: float) -> bool:
        """Wait until a sign is requested or the time is over. Return whether the lease has ended."""
        self._now[which].wait(seconds)
        self._now[which].clear()
        return self._end.is_set()

    def end(self) -> None:
        """Stop giving signs of life."""
        self._end.set()
        for event in self._now:
            event.set()
        deadline = time.monotonic() + 4 * self._times.call
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(timeout=max(0.0, deadline - time.monotonic()))
        if self._heartbeat is not None:
            self._heartbeat.remove()

    def release(self) -> None:
        """Release the lease. If that fails, it expires."""
        self.end()
        try:
            if self.limit is not None:
                self._renewing.remove_soon(self.limit)
        except SluiceError as error:
            logger.warning("the lease of the job could not be given back and will expire: %s", error.message)
        finally:
            self.limit = None
            self._close()

    def _close(self) -> None:
        self._limits.close()
        self._renewing.close()


def _failure_text(error: SluiceError | OSError) -> str:
    return error.message if isinstance(error, SluiceError) else str(error.strerror or type(error).__name__)
