"""Prefect's own client while a job runs: as patient as the job's record (``outage.py``).

Prefect 3.8 repeats a call five times, 62 s in all, doubling the wait each time; more repetitions alone would wait for
minutes after the server is back. What the engine asks for (a run's begin, its states, the form of a wait) may be
repeated: a state carries the id of its transition, so the server knows one that it has carried out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from prefect.client.base import PrefectHttpxSyncClient

from flows.engine.outage import outage_of

_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
_LONGEST = 5.0
"""Seconds between two attempts."""

_NAME = "_send_with_retry"
_of_prefect = getattr(PrefectHttpxSyncClient, _NAME)


@contextmanager
def bridging(url: str) -> Iterator[None]:
    """Let Prefect's client in this process bridge an outage of the API at ``url``."""
    outage = outage_of(url)

    def patient(
        client: PrefectHttpxSyncClient, request: httpx.Request, send: Any, send_args: Any, send_kwargs: Any, **_: Any
    ) -> httpx.Response:
        hopeless, wait = outage.begin(), 0.25
        while True:
            response: httpx.Response | None = None
            try:
                response = _of_prefect(client, request, send, send_args, send_kwargs)
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

    kept = vars(PrefectHttpxSyncClient)[_NAME]
    setattr(PrefectHttpxSyncClient, _NAME, patient)
    try:
        yield
    finally:
        setattr(PrefectHttpxSyncClient, _NAME, kept)


def bridge_from_now_on(url: str) -> None:
    """As ``bridging``, to the end of this process: a worker starts one for each run, whose end Prefect records."""
    bridging(url).__enter__()
