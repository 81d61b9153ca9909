"""Replace what Prefect does in the process of a run while its API is away (``patches.py``).

**Calls.** Prefect 3.8 repeats a call five times, 62 s in all, doubling the wait each time; more repetitions alone would
wait for minutes after the server is back. Here its client is as patient as the job's record (``outage.py``). The calls
of the engine (begin of a run, its states, the form of a wait) may be repeated: a state carries the id of its
transition, so the server recognises one that it has carried out.

**The slot of a deployment's ``concurrency_limit``.** Prefect's own renewal ends a run if the server was away at the
wrong moment or has lost the slots. The limit only makes runs wait for each other; a running one is not ended for it. A
slot not renewed for ``lease_duration`` is given to the next run, as it must for the runs of a dead machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import httpx
from prefect.client.base import PrefectHttpxSyncClient

from flows.engine import patches
from flows.engine.api import PrefectApi
from flows.engine.outage import Outage, outage_of
from flows.prefect.address import ApiAddress, running_api
from tasks.shared.errors import SluiceError
from tasks.shared.log import logger

_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
_LONGEST = 5.0
"""Seconds between two attempts."""

_bridged: list[Outage] = []
"""The outage that is bridged now is the last one."""

RENEWALS = 5
"""Number of renewals of a slot within its lease."""

AGAIN = 10.0
"""Seconds to the next try while the server is away."""


def send(
    client: PrefectHttpxSyncClient, request: httpx.Request, send: Any, send_args: Any, send_kwargs: Any, **codes: Any
) -> httpx.Response:
    """Send a request like Prefect's client; during a bridged outage, repeat it until it is answered or given up."""
    of_prefect = patches.of_prefect("prefect.client.base", "PrefectHttpxSyncClient._send_with_retry")
    if not _bridged:
        plain: httpx.Response = of_prefect(client, request, send, send_args, send_kwargs, **codes)
        return plain
    outage = _bridged[-1]
    hopeless, wait = outage.begin(), 0.25
    while True:
        response: httpx.Response | None = None
        try:
            response = of_prefect(client, request, send, send_args, send_kwargs)
        except httpx.TransportError:
            outage.failed()
            if hopeless():
                raise
        else:
            if response.status_code not in _TRANSIENT:
                outage.answered()
                return response
            outage.failed()
            if hopeless():
                return response
            response.close()
        time.sleep(wait)
        wait = min(2 * wait, _LONGEST)


@contextmanager
def bridging(url: str) -> Iterator[None]:
    """Let Prefect's client in this process bridge an outage of the API at ``url``."""
    patches.apply("run")
    outage = outage_of(url)
    _bridged.append(outage)
    try:
        yield
    finally:
        _bridged.remove(outage)


def bridge_from_now_on(url: str) -> None:
    """Bridge outages until this process ends: a worker starts one per run, and Prefect records the end of that run."""
    bridging(url).__enter__()


@contextmanager
def renewed_slot(lease_id: UUID, lease_duration: float, **_: bool) -> Iterator[None]:
    """Renew the slot of a run of this process while it lasts, in place of Prefect's ``maintain_concurrency_lease``."""
    over = threading.Event()
    renewing = (running_api(), str(lease_id), lease_duration, over)
    thread = threading.Thread(target=renew, args=renewing, name=f"slot-{lease_id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=2)


def renew(address: ApiAddress, lease: str, seconds: float, over: threading.Event) -> None:
    """Renew a slot until the run is ``over``, or the slot is another's."""
    with PrefectApi(address, timeout=5.0, patience=0) as api:
        wait = 0.0
        while not over.wait(wait):
            try:
                api.request("POST", f"/v2/concurrency_limits/leases/{lease}/renew", {"lease_duration": seconds})
                wait = seconds / RENEWALS
            except SluiceError as error:
                if error.status == 410:
                    logger.warning("the slot of this run was given to another one; the run continues")
                    return
                wait = AGAIN
