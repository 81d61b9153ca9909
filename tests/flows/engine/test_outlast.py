"""Prefect's worker while its server is away: looks that fail are repeated."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest
from prefect.workers.process import ProcessWorker

from flows.engine.outlast import Worker, loop

REQUEST = httpx.Request("POST", "http://127.0.0.1")


class EnoughError(Exception):
    """The end of a test's loop."""


def failing(status: int) -> httpx.HTTPStatusError:
    return httpx.HTTPStatusError("", request=REQUEST, response=httpx.Response(status, request=REQUEST))


def looked(answers: list[Exception | None]) -> int:
    """How many looks a loop had until the first answer that ended it."""
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1
        answer = answers[looks - 1]
        if answer is not None:
            raise answer

    async def looking() -> None:
        options: dict[str, Any] = {"backoff": 4, "printer": lambda *_: None}
        await loop(look, 0.0, **options)

    with pytest.raises(type(answers[-1])):
        asyncio.run(looking())
    return looks


def test_a_prefect_worker_loop_never_counts_polls_that_the_server_did_not_answer() -> None:
    away: list[Exception | None] = [httpx.ConnectError(""), httpx.ReadTimeout(""), failing(503), failing(429)]
    assert looked([*away * 10, None, *away * 10, EnoughError()]) == 82


def test_what_is_no_outage_ends_it() -> None:
    assert looked([None, failing(401)]) == 2


def test_a_run_whose_last_process_still_ends_waits_for_the_next_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submitted: list[str] = []

    async def submit(self: Worker, found: list[Any]) -> list[Any]:
        submitted.extend(entry.flow_run.id for entry in found)
        return []

    async def looks() -> None:
        worker = Worker.__new__(Worker)
        worker._limiter = anyio.CapacityLimiter(2)
        worker._limiter.acquire_on_behalf_of_nowait("resumed")
        found: Any = [SimpleNamespace(flow_run=SimpleNamespace(id=name)) for name in ("resumed", "new")]
        await worker._submit_scheduled_flow_runs(found)
        worker._limiter.release_on_behalf_of("resumed")
        await worker._submit_scheduled_flow_runs(found[:1])

    monkeypatch.setattr(ProcessWorker, "_submit_scheduled_flow_runs", submit)
    asyncio.run(looks())
    assert submitted == ["new", "resumed"]
