from __future__ import annotations

import socket

import httpcore
import pytest

from tasks.shared.errors import Stopped
from tasks.shared.stop import Stop
from tasks.shared.wire import Patience
from tests.tasks.shared.http_client import client
from tests.tasks.shared.loopback import Raw, Seen, loopback


def late(seconds: float | None) -> bytes:
    raise TimeoutError


def test_without_a_stop_the_wait_is_the_timeout() -> None:
    waits = []

    def step(seconds: float | None) -> bytes:
        waits.append(seconds)
        raise TimeoutError

    with pytest.raises(httpcore.ReadTimeout):
        Patience(None).wait(step, 10.0, httpcore.ReadTimeout)
    assert waits == [10.0]


def test_with_a_stop_the_wait_is_cut_into_slices_that_add_up() -> None:
    waits: list[float] = []

    def step(seconds: float | None) -> bytes:
        assert seconds is not None
        waits.append(seconds)
        raise TimeoutError

    with pytest.raises(httpcore.ReadTimeout):
        Patience(Stop()).wait(step, 1.1, httpcore.ReadTimeout)
    assert sum(waits) == pytest.approx(1.1)
    assert max(waits) <= 0.25


def test_a_request_may_go_on_for_the_grace_after_a_stop() -> None:
    now = [100.0]
    stop = Stop()
    patience = Patience(stop, grace=5.0, clock=lambda: now[0])
    patience.check()
    stop.request("signal")
    patience.check()
    now[0] = 104.9
    patience.check()
    now[0] = 105.0
    with pytest.raises(Stopped, match="signal"):
        patience.check()


def test_a_stop_ends_a_request_whose_answer_does_not_come() -> None:
    stop = Stop()

    def answer(_: Seen) -> Raw:
        stop.request("signal")
        return Raw(b"", "stall")

    with loopback(answer) as server, client(stop=stop, timeout=1800) as http:
        http._patience._grace = 0.0
        with pytest.raises(Stopped):
            http.send("POST", server.url, operation="flatten")


def test_a_stop_ends_a_connection_attempt_that_nobody_answers() -> None:
    stop = Stop()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        # A full backlog: Linux drops further SYNs, so a connect hangs.
        fill = [socket.socket() for _ in range(4)]
        for sock in fill:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        stop.request("signal")
        with client(stop=None, timeout=1800) as http:
            http._patience = Patience(stop, grace=0.0)
            with pytest.raises(Stopped):
                http.send("GET", f"http://127.0.0.1:{port}/", operation="read")
        for sock in fill:
            sock.close()
