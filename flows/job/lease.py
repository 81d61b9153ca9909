"""The lock of a job across machines: a Prefect global concurrency limit ``job-<id>`` with a lease.

``4-product.md`` §6. ``flock`` (``flows/job/lock.py``) holds between the processes of one machine; between machines only
what all of them see holds, and that is the Prefect API. The limit has one slot, and it is taken as long as the limit
exists: creating it takes the lock (names are unique), removing it by its own id gives it back. Its ``updated`` time is
the lease: the holder renews it, and one that nobody renewed for ``LeaseTimes.lease`` may be replaced. All of it is in
Prefect's database, so it survives a restart of the server; the leases of Prefect's own client live in the memory of the
server by default, and their slots stay taken for ever when it restarts.

Whoever replaces a lapsed limit removes it by id first. Of two that try, one removes it, and the other's creation is
refused. A holder that was away for too long finds its own id gone and ends at once.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Self

import httpx

from flows.engine.api import Json, PrefectApi
from flows.engine.api_address import ApiAddress, configured_api
from flows.engine.reached import own_server
from tasks.shared.errors import NetworkError, SluiceError, TransientError
from tasks.shared.log import logger


@dataclass(frozen=True)
class LeaseTimes:
    """The times of a lease, in seconds.

    A holder ends ``give_up`` seconds after its last renewal, so that the calls under way then, of ``call`` seconds a
    phase, are over before the lease is. Another machine takes the lease ``margin`` seconds after it lapsed: ``Date``
    counts whole seconds.
    """

    lease: float = 60.0
    margin: float = 5.0
    renew: float = 15.0
    retry: float = 3.0
    give_up: float = 45.0
    call: float = 5.0


TIMES = LeaseTimes()


class LeaseTakenError(Exception):
    """Another machine has the lease."""


class LeaseLostError(TransientError):
    """The lease could not be renewed in time, or another machine has it by now (exit code 3)."""


def lease_api(jobs_dir: Path) -> ApiAddress | None:
    """The Prefect API that other machines may share; ``None`` for the embedded one, which is this machine's alone."""
    address = configured_api()
    return None if address is None or own_server(jobs_dir, address.url) else address


class Limits(PrefectApi):
    """The calls of Prefect's API for global concurrency limits."""

    def find(self, name: str) -> Json | None:
        """The limit of that name, or ``None``."""
        found: Json | None = self.request("GET", f"/v2/concurrency_limits/{name}")
        return found

    def create(self, name: str) -> str | None:
        """Create a limit whose one slot is taken; its id, or ``None`` when there is one of that name."""
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

    def now(self) -> datetime:
        """The time on the server's clock, which ``updated`` is by: clocks of two machines differ.

        Raises:
            NetworkError: the server does not answer, or does not say.
        """
        try:
            return parsedate_to_datetime(self._client.get("/health").headers["date"])
        except (httpx.HTTPError, KeyError, ValueError) as error:
            raise NetworkError(
                "prefect-unreachable", f"the Prefect API does not tell the time ({type(error).__name__})",
                context=self.address.shown, hint="check the Prefect server and what is between",
            ) from None  # fmt: skip

    def holds(self, found: Json, times: LeaseTimes) -> bool:
        """Whether the lease of a limit holds."""
        age = self.now() - datetime.fromisoformat(str(found["updated"]))
        return age.total_seconds() < times.lease + times.margin


def limit_name(job_id: str) -> str:
    """The name of a job's limit."""
    return f"job-{job_id}"


def is_leased(address: ApiAddress, job_id: str) -> bool:
    """Whether some machine has the lease of the job now."""
    with Limits(address) as limits:
        found = limits.find(limit_name(job_id))
        return found is not None and limits.holds(found, TIMES)


def lease_lost(message: str, name: str) -> LeaseLostError:
    """The error of a holder whose lease is gone."""
    return LeaseLostError(
        "job-lease-lost", message, context=name, hint="see pipeline status, and continue the job if it is interrupted"
    )


WORKERS_RUN = "PREFECT__FLOW_RUN_ID"
"""Set in a process that a Prefect worker has started for a run."""


def end_process(error: SluiceError) -> None:
    """End this process as ``kill -9`` would: another machine may have the job, so nothing more may be written.

    A worker sets a run whose process ends with an exit code to Crashed: not this one, its state is the other machine's.
    """
    with suppress(OSError, ValueError):
        sys.stderr.write(error.render() + "\n")
        sys.stderr.flush()
        for handler in logging.getLogger().handlers + logger.handlers:
            handler.flush()
    os._exit(0 if WORKERS_RUN in os.environ else error.exit_code)


class Lease:
    """The lease of one job, renewed by a thread until it is released.

    ``lost`` is called in that thread when the lease is gone; it must not let the process go on.
    """

    def __init__(
        self,
        address: ApiAddress,
        job_id: str,
        *,
        lost: Callable[[SluiceError], None] = end_process,
        times: LeaseTimes | None = None,
    ) -> None:
        times = times or TIMES
        self.name = limit_name(job_id)
        self.limit: str | None = None
        self._limits = Limits(address)
        self._renewing = Limits(address, timeout=times.call, patience=0)
        self._lost = lost
        self._times = times
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"lease-{job_id}", daemon=True)
        self._renewed = 0.0

    def acquire(self, known: str | None = None) -> Self:
        """Take the lease; ``known`` is the limit of a holder on this machine that is certainly gone.

        Raises:
            LeaseTakenError: another machine has it.
            SluiceError: the Prefect API does not answer, or refuses.
        """
        try:
            self._renewed = time.monotonic()
            self.limit = known if known is not None and self._limits.renew(known) else self._taken()
        except BaseException:
            self._close()
            raise
        self._thread.start()
        return self

    def _taken(self) -> str:
        found = self._limits.find(self.name)
        if found is not None:
            if self._limits.holds(found, self._times):
                raise LeaseTakenError
            self._limits.remove(str(found["id"]))
        self._renewed = time.monotonic()
        limit = self._limits.create(self.name)
        if limit is None:
            raise LeaseTakenError
        return limit

    def _keep(self) -> None:
        wait = self._times.renew
        while not self._end.wait(wait):
            begun = time.monotonic()
            try:
                renewed = self._renewing.renew(str(self.limit))
            except SluiceError as error:
                logger.warning("the lease of the job is not renewed: %s", error.message)
                wait = self._times.retry
                if time.monotonic() - self._renewed > self._times.give_up:
                    self._lost(lease_lost("the Prefect API was away for too long to keep the lease", self.name))
                    return
                continue
            if not renewed:
                self._lost(lease_lost("the lease is gone: another machine may run the job", self.name))
                return
            self._renewed, wait = begun, self._times.renew

    def release(self) -> None:
        """Give the lease back. One that cannot be given back lapses by itself."""
        self._end.set()
        self._thread.join(timeout=4 * self._times.call)
        try:
            if self.limit is not None:
                self._limits.remove(self.limit)
        except SluiceError as error:
            logger.warning("the lease of the job lapses by itself: %s", error.message)
        finally:
            self.limit = None
            self._close()

    def _close(self) -> None:
        self._limits.close()
        self._renewing.close()
