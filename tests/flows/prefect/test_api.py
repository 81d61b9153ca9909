"""The client of Prefect's API: what is repeated, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from flows.prefect import address
from flows.prefect import api as module
from flows.prefect.address import ApiAddress
from flows.prefect.api import PrefectApi, reach, run_deployment
from tasks.shared.errors import InputError, NetworkError, SluiceError, TerminalError
from tests.peers.server import Reply, ScriptedServer, loopback

BUSY, AWAY, GOOD = Reply(503, b"{}"), Reply(500, b"{}"), Reply(200, b'{"id": "1"}')
PAGE = Reply(200, b"<html>back soon</html>")
LOGIN = Reply(302, b"", {"Location": "/login"})

Call = Callable[[PrefectApi], object]


def label(api: PrefectApi) -> object:
    api.set_labels("r", {"job.x": "y"})
    return None


def create(api: PrefectApi) -> object:
    return api.created("/artifacts/", {})


def calls(replies: list[Reply], call: Call, *, patience: float = 20.0) -> tuple[object, int]:
    """Return what a call came to, and the number of requests that it made."""
    with loopback(replies) as server, PrefectApi(ApiAddress(server.url), patience=patience) as api:
        try:
            return call(api), len(server.seen)
        except SluiceError as error:
            return error, len(server.seen)


@pytest.mark.parametrize("call", [label, create], ids=["labels", "creating"])
def test_a_busy_server_is_asked_again_after_some_milliseconds(call: Call) -> None:
    began = time.monotonic()
    done, requests = calls([BUSY, BUSY, GOOD], call)
    assert done in (None, "1")
    assert requests == 3
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("failure", [AWAY, PAGE, LOGIN], ids=["500", "a page of a proxy", "a login"])
def test_what_may_have_been_created_is_not_created_twice(failure: Reply) -> None:
    assert calls([failure, GOOD], label) == (None, 2)
    error, requests = calls([failure, GOOD], create)
    assert isinstance(error, NetworkError)
    assert requests == 1


def test_a_refusal_is_final_and_404_means_that_there_is_nothing() -> None:
    error, requests = calls([Reply(409, b"{}"), GOOD], label)
    assert isinstance(error, TerminalError)
    assert error.status == 409
    assert requests == 1
    assert calls([Reply(404, b"{}")], lambda api: api.read_run("r")) == (None, 1)
    error, _ = calls([Reply(404, b"{}")], lambda api: run_deployment(api, {}))
    assert isinstance(error, InputError)
    assert error.reference == "no-deployment"


def test_after_an_api_was_away_for_too_long_nothing_waits_for_it_again() -> None:
    with PrefectApi(ApiAddress("http://127.0.0.1:9"), patience=1.5) as api:
        for longest in (3.5, 0.5):
            began = time.monotonic()
            with pytest.raises(NetworkError, match="does not answer") as failed:
                api.read_run("r")
            assert failed.value.exit_code == 3
            assert time.monotonic() - began < longest
        assert api.away


def test_an_answer_may_take_longer_than_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.1)

    def stands_still(_: object) -> Reply:
        time.sleep(0.3)
        return Reply(200, b"3")

    with ScriptedServer(stands_still) as server:
        reach(ApiAddress(server.url))
    assert address.ANSWER_SECONDS > 60  # SQLite's busy timeout in Prefect's server


def test_a_hurried_call_is_made_once() -> None:
    error, requests = calls([BUSY, GOOD], lambda api: label(api.hurried(1.0)))
    assert isinstance(error, NetworkError)
    assert requests == 1
