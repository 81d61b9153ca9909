"""Renew the slot that a run has of a deployment's ``concurrency_limit``, without ever ending the run.

Prefect's own renewal ends a run if the server was away at the wrong moment or has lost the slots. The limit only makes
runs wait for each other; a running one is not ended for it. A slot not renewed for ``lease_duration`` is given to the
next run, as it must for the runs of a dead machine.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from flows.engine.api import PrefectApi
from flows.engine.api_address import ApiAddress, current_api
from tasks.shared.errors import SluiceError
from tasks.shared.log import logger

RENEWALS = 5
"""Number of renewals of a slot within its lease."""

AGAIN = 10.0
"""Seconds to the next try while the server is away."""


@contextmanager
def renewed_slot(lease_id: UUID, lease_duration: float, **_: bool) -> Iterator[None]:
    """Renew the slot of a run of this process while it lasts, in place of Prefect's ``maintain_concurrency_lease``."""
    over = threading.Event()
    renewing = (current_api(), str(lease_id), lease_duration, over)
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
