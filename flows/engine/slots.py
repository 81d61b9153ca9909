"""The slot of a deployment's ``concurrency_limit`` that a run has: renewed, and never a reason to end the run.

Prefect's own renewal ends a run when the server was away for a moment at the wrong time, or forgot who had which slot.
The limit is there so that runs wait for each other; one that works is not ended for it. A slot that was not renewed for
``lease_duration`` is given to the next run, as it has to be for the runs of a dead machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

from prefect import flow_engine

from flows.engine.api import PrefectApi
from flows.engine.api_address import ApiAddress
from tasks.shared.errors import SluiceError
from tasks.shared.log import logger

RENEWALS = 5
"""How often a slot is renewed while its lease lasts."""

AGAIN = 10.0
"""Seconds to the next try while the server is away."""


def keep_slots(address: Callable[[], ApiAddress]) -> None:
    """Let the runs of this process, from now on, keep their slots this way, at the API at ``address``."""

    @contextmanager
    def kept(lease_id: UUID, lease_duration: float, **_: bool) -> Iterator[None]:
        over = threading.Event()
        renewing = (address(), str(lease_id), lease_duration, over)
        thread = threading.Thread(target=renew, args=renewing, name=f"slot-{lease_id}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(timeout=2)

    flow_engine.maintain_concurrency_lease = kept  # type: ignore[attr-defined, assignment]


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
                    logger.warning("the slot of this run is given away; the run goes on")
                    return
                wait = AGAIN
