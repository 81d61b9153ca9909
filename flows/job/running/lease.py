"""The lock of a job across machines: a Prefect global concurrency limit ``job-<id>`` with a lease, and a heartbeat.

``4-product.md`` §6. ``flock`` (``lock.py``) works only between the processes of one machine. Different machines share
the Prefect API and the job's directory, so their lock uses these two. The limit has one slot, which is taken as long as
the limit exists. Creating the limit takes the lock (names are unique), and removing the limit by its id releases it.
The ``updated`` time of the limit is the lease, which the holder renews. The limit is in Prefect's database, so it
survives a restart of the server.

The server may be unavailable for longer than a lease while its jobs continue. The holder therefore gives two signs of
life: it renews the lease, and it writes the heartbeat file (``proof.py``). It continues while at least one of them
succeeded in the last ``LeaseTimes.give_up`` seconds. Before it ends, it tries both once more, because both are also
late if the machine only slept. A process that takes over first watches both for a whole lease (``proof.py``). It then
removes the limit by id, creates its own and writes its id into ``.lock``. The previous holder checks ``.lock`` before
each request to a service and before each heartbeat. It ends at once if it finds another id there, or another limit in
the place of its own.
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
"""Attempts to remove a limit, half a second apart, while the database is busy."""

PATIENCE = 12.0
"""Seconds for which a command that watches for a sign of life tolerates an unavailable server."""


def clock() -> float:
    """Return a monotonic time in seconds that includes the time in which the machine slept (on Linux)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class LeaseLostError(TransientError):
    """The lease is lost, and another machine may already run the job (exit code 3)."""


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
        """Renew the lease. Return ``False`` if the limit is gone. ``PATCH`` sets ``updated`` even without a change."""
        return self.request("PATCH", f"/v2/concurrency_limits/{limit}", {"active_slots": 1}) is not None

    def remove(self, limit: str) -> bool:
        """Remove the limit with that id. Return ``False`` if it is already gone."""
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
            NetworkError: the server does not answer, or its answer contains no time.
        """
        try:
            return parsedate_to_datetime(self._client.get("/health").headers["date"])
        except (httpx.HTTPError, KeyError, ValueError) as error:
            raise NetworkError(
                "prefect-unreachable", f"the time of the Prefect API could not be read ({type(error).__name__})",
                context=self.address.shown, hint="check the Prefect server and any proxy in between",
            ) from None  # fmt: skip

    def holds(self, found: Json, times: LeaseTimes) -> bool:
        """Return whether the lease was renewed in time, measured by the server's clock. For display only."""
        age = self.now() - datetime.fromisoformat(str(found["updated"]))
        return age.total_seconds() < times.lease


def limit_name(job_id: str) -> str:
    """Return the name of a job's limit."""
    return f"job-{job_id}"


def is_leased(address: ApiAddress, name: str, directory: Path) -> bool:
    """Return whether a machine gives a sign of life for the lease of that name, or the heartbeat in ``directory``."""
    with Limits(address) as limits:
        found = limits.find(limit_name(name))
        return (found is not None and limits.holds(found, TIMES)) or beats(directory, TIMES.lease)


def lease_lost(message: str, name: str) -> LeaseLostError:
    """Return the error of a holder whose lease is gone."""
    return LeaseLostError(
        "job-lease-lost", message, context=name, hint="see pipeline status, and continue the job if it is interrupted"
    )


WORKERS_RUN = "PREFECT__FLOW_RUN_ID"
"""Set in a process that a Prefect worker has started for a run."""


def end_process(error: SluiceError) -> None:
    """End this process without any cleanup: another machine may have the job, so this one must not write any more.

    Under a Prefect worker, the exit code is 0: after any other code the worker would set the run to Crashed, although
    only the other machine may set its state now.
    """
    with suppress(OSError, ValueError):
        logger.error("%s", error.render())  # into job.log
        sys.stderr.write(error.render() + "\n")
        sys.stderr.flush()
        for handler in logging.getLogger().handlers + logger.handlers:
            handler.flush()
    os._exit(0 if WORKERS_RUN in os.environ else error.exit_code)


class Lease:
    """The lease and the heartbeat of one job.

    Each is renewed by a thread of its own until the release, so that a server or a directory that hangs does not delay
    the other. One of these threads calls ``lost`` if another machine may have the job; ``lost`` must end the process.
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
        """Take the lease.

        ``known`` is the limit of a previous holder on this machine that has certainly ended. ``before`` is a holder on
        another machine that did not release the job; that holder may still run, even if its limit is missing.

        Raises:
            LeaseTakenError: another machine holds the lease.
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
        """Start to renew the lease and the heartbeat.

        The callbacks access the file that names the holder, if there is one: ``still_ours`` returns whether the file
        names this process, and ``rename`` writes the id of a new limit into it. Both raise ``OSError`` if the file
        cannot be read or written.
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
                    return limit  # the usual case: nobody holds the lease
            except NotTakenError:
                raise
            except NetworkError as error:
                # The server may have created the limit although its answer was lost. Nobody renews such a limit, so it
                # is replaced like that of a dead holder. A second attempt covers a server that creates it even later.
                logger.warning("the lease of the job is requested again: %s", error.message)
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
        """True if neither sign of life succeeded in time, so that another machine may have the job."""
        return self._clock() - self._sign > self._times.give_up

    def lose(self, message: str) -> LeaseLostError:
        """Give up the job: stop the threads and call ``lost``."""
        error = lease_lost(message, self.name)
        if not self._end.is_set():
            self._end.set()
            self._lost(error)
        return error

    def _renew_until_end(self) -> None:
        """Renew the lease until the end. Give up the job if another machine may have it."""
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
            found = self._renewing.find(self.name)  # the earlier call created it, but its answer was lost
            made = str(found["id"]) if found is not None else None
        self._maybe_made = False
        if made is None or not self._still_ours():
            return False
        self.limit = made
        self._rename(made)
        logger.warning("the lease of the job was missing at the Prefect API; it was created again")
        return True

    def _beat(self, heartbeat: Heartbeat) -> None:
        """Write the heartbeat until the end. Give up the job if another machine has taken it."""
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
        """Give up the job if both signs of life are late, even if a thread hangs."""
        tick = min(1.0, self._times.sure / 4)
        while not self._end.wait(tick):
            if self._clock() - self._sign > self._times.give_up - self._times.sure and not self._sure(tick):
                self.lose("neither the Prefect API nor the job's directory could be reached in time")
                return

    def _sure(self, tick: float) -> bool:
        """Return whether a requested sign of life succeeds in time. Ticks are counted to leave out sleep."""
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
        """Wait until a sign of life is requested or the time is over. Return whether the lease has ended."""
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
        """Release the lease. If that fails, the lease expires."""
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
