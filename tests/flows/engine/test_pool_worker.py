"""Prefect's worker while its server is away: failed polls are repeated."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import anyio
import httpx
import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Scheduled
from prefect.workers.process import ProcessWorker

from flows.engine.flow_runs import BEHIND
from flows.engine.pool_worker import Worker, later, loop

REQUEST = httpx.Request("POST", "http://127.0.0.1")


class EnoughError(Exception):
    """The end of a test's loop."""


def failing(status: int) -> httpx.HTTPStatusError:
    return httpx.HTTPStatusError("", request=REQUEST, response=httpx.Response(status, request=REQUEST))


def count_polls(answers: list[Exception | None]) -> int:
    """Count the polls of a loop up to the first answer that ended it."""
    looks = 0

    async def poll() -> None:
        nonlocal looks
        looks += 1
        answer = answers[looks - 1]
        if answer is not None:
            raise answer

    async def run_loop() -> None:
        options: dict[str, Any] = {"backoff": 4, "printer": lambda *_: None}
        await loop(poll, 0.0, **options)

    with pytest.raises(type(answers[-1])):
        asyncio.run(run_loop())
    return looks


def test_a_prefect_worker_loop_never_counts_polls_that_the_server_did_not_answer() -> None:
    away: list[Exception | None] = [httpx.ConnectError(""), httpx.ReadTimeout(""), failing(503), failing(429)]
    assert count_polls([*away * 10, None, *away * 10, EnoughError()]) == 82


def test_what_is_no_outage_ends_it() -> None:
    assert count_polls([None, failing(401)]) == 2


def test_a_run_whose_last_process_still_ends_waits_for_the_next_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submitted: list[str] = []

    async def submit(self: Worker, found: list[Any]) -> list[Any]:
        submitted.extend(entry.flow_run.id for entry in found)
        return []

    async def poll_twice() -> None:
        worker = Worker.__new__(Worker)
        worker._limiter = anyio.CapacityLimiter(2)
        worker._limiter.acquire_on_behalf_of_nowait("resumed")
        found: Any = [
            SimpleNamespace(flow_run=SimpleNamespace(id=name, deployment_id=None)) for name in ("resumed", "new")
        ]
        await worker._submit_scheduled_flow_runs(found)
        worker._limiter.release_on_behalf_of("resumed")
        await worker._submit_scheduled_flow_runs(found[:1])

    monkeypatch.setattr(ProcessWorker, "_submit_scheduled_flow_runs", submit)
    asyncio.run(poll_twice())
    assert submitted == ["new", "resumed"]


def planned(text: str) -> list[FlowRun]:
    """Runs such as ``d1``: the letter is the deployment, in a queue of its own, the number the hour of the run."""
    letters = [(UUID(int=ord(one[0])), int(one[1:])) for one in text.split()]
    return [
        FlowRun(
            id=UUID(int=ord(name[0]) * 100 + hour), flow_id=UUID(int=1), deployment_id=deployment, name=name,
            work_queue_id=deployment, expected_start_time=datetime(2026, 3, 2, hour, tzinfo=UTC),
        )
        for name, (deployment, hour) in zip(text.split(), letters, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("due", "waiting", "behind"),
    [
        ("d2", "", ""),
        ("d2", "d2", ""),
        ("d2", "d1", "d2"),  # its turn to ask comes later, its turn to run earlier
        ("d1", "d2", ""),
        ("d3 d1 d2", "", "d3 d2"),
        ("d3 d2", "d1", "d3 d2"),
        ("d2 e3", "d1", "d2"),
        ("d2 e3", "d4 e5", ""),
        ("", "d1", ""),
    ],
)
def test_a_run_gives_way_to_one_of_its_deployment_that_was_planned_earlier(due: str, waiting: str, behind: str) -> None:
    assert [run.name for run in later(planned(due), planned(waiting))] == behind.split()


def test_a_run_gives_no_way_to_one_in_a_queue_that_may_have_no_worker() -> None:
    (elsewhere,) = planned("d1")
    elsewhere.work_queue_id = UUID(int=7)
    assert later(planned("d2"), [elsewhere]) == []


def due_and_waiting(limit: object, *states: str) -> tuple[list[UUID], list[tuple[UUID, str]]]:
    """Return the runs d2, d3, … in these states that a worker submits while d1 waits, and the states it sets."""
    runs = planned(" ".join(f"d{number + 2}" for number in range(len(states))))
    for run, name in zip(runs, states, strict=True):
        run.state = Scheduled(name=name)
    given: list[tuple[UUID, str]] = []
    submitted: list[UUID] = []

    class Client:
        async def read_deployments(self, **_: Any) -> list[Any]:
            return [SimpleNamespace(id=runs[0].deployment_id, global_concurrency_limit=limit)]

        async def read_flow_runs(self, **_: Any) -> list[FlowRun]:
            return planned("d1")

        async def set_flow_run_state(self, run: UUID, state: Any) -> None:
            given.append((run, state.name))

    async def submit(self: Worker, found: list[Any]) -> list[Any]:
        submitted.extend(entry.flow_run.id for entry in found)
        return []

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ProcessWorker, "_submit_scheduled_flow_runs", submit)
        worker = Worker.__new__(Worker)
        worker._limiter = None
        patched.setattr(worker, "_client", Client(), raising=False)
        entries: Any = [SimpleNamespace(flow_run=run) for run in runs]
        asyncio.run(worker._submit_scheduled_flow_runs(entries))
    return submitted, given


def test_a_run_that_gives_way_waits_as_prefect_lets_it_wait() -> None:
    two, three = (run.id for run in planned("d2 d3"))
    assert due_and_waiting(SimpleNamespace(limit=1), "Late", BEHIND) == ([], [(two, BEHIND)])
    assert due_and_waiting(SimpleNamespace(limit=1), "Resuming") == ([], [])
    assert due_and_waiting(None, "Late", BEHIND) == ([two, three], [])
