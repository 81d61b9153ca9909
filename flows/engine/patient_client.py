"""Make Prefect's own client as patient as the job's record while a job runs (``outage.py``).

Prefect 3.8 repeats a call five times, 62 s in all, doubling the wait each time; more repetitions alone would wait for
minutes after the server is back. The calls of the engine (begin of a run, its states, the form of a wait) may be
repeated: a state carries the id of its transition, so the server recognises one that it has carried out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from prefect.client.base import PrefectHttpxSyncClient

from flows.engine import patches
from flows.engine.outage import Outage, outage_of

_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
_LONGEST = 5.0
"""Seconds between two attempts."""

_bridged: list[Outage] = []
"""The outage that is bridged now is the last one."""


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
