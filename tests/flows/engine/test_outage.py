"""Waiting time of a running job's calls while a shared Prefect API is away (4-product.md §6)."""

from __future__ import annotations

import logging
from collections.abc import Callable

import httpx
import pytest
from prefect.client.base import PrefectHttpxSyncClient

from flows.engine import outage as module
from flows.engine.api import PrefectApi
from flows.engine.bridging import bridging
from flows.engine.flow_runs import Page, set_labels
from flows.engine.outage import Outage
from flows.prefect.address import ApiAddress
from tasks.shared.errors import NetworkError, TerminalError

URL = "http://127.0.0.1:9/api"


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the seconds of a clock that sleeping moves on."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("tenacity.nap.time.sleep", sleep)
    monkeypatch.setitem(module._known, URL, Outage(clock=lambda: now[0]))
    return now


def api(answer: Callable[[httpx.Request], httpx.Response]) -> PrefectApi:
    found = PrefectApi(ApiAddress(url=URL), bridges=True)
    found.close()
    found._client = httpx.Client(transport=httpx.MockTransport(answer), base_url=URL)
    return found


def refused(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("made up", request=request)


@pytest.mark.parametrize("failure", [500, 503, None], ids=["500", "503", "nobody there"])
def test_a_running_job_reports_once_that_its_record_waits_and_once_it_is_written(
    now: list[float], failure: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if now[0] > 600:
            return httpx.Response(200, json={})
        return refused(request) if failure is None else httpx.Response(failure)

    with caplog.at_level(logging.INFO, "sluice"), api(answer) as record:
        assert set_labels(record, "r", {"job.x": "y"})
    assert 600 < now[0] < 610
    assert [line.getMessage().partition(":")[0].partition(",")[0] for line in caplog.records] == [
        "the Prefect API does not answer", "the Prefect API answers again"
    ]  # fmt: skip


def test_after_15_minutes_of_one_outage_every_call_gives_up_at_once(now: list[float]) -> None:
    with api(refused) as record:
        for most in (905.0, 0.0):
            before = now[0]
            with pytest.raises(NetworkError):
                record.read_run("r")
            assert now[0] - before <= most
    assert now[0] >= 900


def test_a_call_that_fails_while_others_are_answered_is_not_waited_for_so_long(now: list[float]) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        module._known[URL].answered()
        return httpx.Response(500)

    with api(answer) as record, pytest.raises(NetworkError):
        record.read_run("r")
    assert now[0] < 40


def test_what_the_server_refuses_is_not_waited_for(now: list[float]) -> None:
    with api(lambda _: httpx.Response(403)) as record, pytest.raises(TerminalError):
        record.read_run("r")
    assert now[0] == 0


def test_a_hurried_call_is_made_once(now: list[float]) -> None:
    with api(refused) as record, record.hurried(1.0), pytest.raises(NetworkError):
        record.read_run("r")
    assert now[0] == 0


def test_an_artifact_whose_making_was_not_answered_is_not_made_twice(now: list[float]) -> None:
    made: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/filter"):
            return httpx.Response(200, json=[{"id": "a", "key": None} for _ in made])
        if request.method == "PATCH":
            return httpx.Response(204)
        made.append("page")
        return httpx.Response(500)  # after it was done

    with api(answer) as record:
        Page(record, "r").publish("title", "text")
    assert made == ["page"]


@pytest.mark.parametrize("failure", [500, 503, None], ids=["500", "503", "nobody there"])
def test_the_prefect_client_waits_as_long_and_continues_soon_after_an_outage(
    now: list[float], failure: int | None
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if now[0] > 600:
            return httpx.Response(200)
        return refused(request) if failure is None else httpx.Response(failure)

    with bridging(URL), PrefectHttpxSyncClient(transport=httpx.MockTransport(answer), base_url=URL) as client:
        assert client.get("/x").status_code == 200
    assert 600 < now[0] < 610


def test_prefects_own_client_gives_up_with_the_others(now: list[float]) -> None:
    transport = httpx.MockTransport(refused)
    client = PrefectHttpxSyncClient(transport=transport, base_url=URL)
    with bridging(URL), client, pytest.raises(httpx.ConnectError):
        client.get("/x")
    assert 900 <= now[0] < 910
