"""The client of every call over a real socket: retry, redirects, errors that quote nothing."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest

from tasks.shared.errors import (
    InputError,
    NetworkError,
    ServiceBusyError,
    ServiceError,
    SluiceError,
    StalledError,
    Stopped,
)
from tasks.shared.http import request_log
from tasks.shared.http.answer import Answer
from tasks.shared.http.client import Call
from tasks.shared.http.errors import RequestContext, error_for
from tasks.shared.stop import Stop
from tests.peers.client import Sleeps, client
from tests.peers.server import Raw, Reply, closed_port, loopback

CUT = Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nab")
OUTCOME = b'{"resourceType":"OperationOutcome","issue":[{"severity":"error","code":"conflict","diagnostics":"Erika"}]}'


@pytest.mark.parametrize("first", [*map(Reply, (408, 429, 500, 502, 503, 504)), Reply(reset=True), CUT])
def test_what_may_pass_is_tried_again_with_the_same_bytes(first: Any) -> None:
    with loopback([first, first, Reply(200, b"done")]) as server, client() as http:
        answer = http.send(Call("POST", server.url, "call", content=b"body"))
    assert answer.body == b"done"
    assert [seen.body for seen in server.seen] == [b"body"] * 3
    assert http.meter.retries == 2


@pytest.mark.parametrize(
    ("status", "reference"),
    [
        (400, "service-refused"), (401, "service-unauthorized"), (403, "service-forbidden"),
        (404, "service-not-found"), (409, "service-refused"), (413, "service-too-large"), (501, "service-failed"),
        (304, "service-unexpected"),
    ],
)  # fmt: skip
def test_what_will_not_pass_is_an_error_at_once_that_quotes_nothing(status: int, reference: str) -> None:
    with loopback([Reply(status, OUTCOME)]) as server, client() as http, pytest.raises(ServiceError) as caught:
        http.send(Call("POST", f"{server.url}/fhir?name=Erika", "load", content=b"x"))
    error = caught.value
    assert (error.reference, error.status, len(server.seen)) == (reference, status, 1)
    assert "issue codes: conflict" in error.message or status == 304  # which has no body
    assert "Erika" not in error.render() + repr(error)
    assert error.answer.body in (OUTCOME, b"")


@pytest.mark.parametrize(
    ("reply", "kind", "reference"),
    [
        (Reply(503), ServiceBusyError, "service-busy"), (Reply(reset=True), NetworkError, "connection-broken"),
        (CUT, NetworkError, "connection-broken"), (Reply(stall=True), NetworkError, "timeout"),
        (Raw(b"SSH-2.0-OpenSSH\r\n"), NetworkError, "connection-broken"),
    ],
)  # fmt: skip
def test_what_stays_is_an_error_after_the_last_attempt(reply: Any, kind: type[SluiceError], reference: str) -> None:
    sleeps = Sleeps()
    with (
        loopback([reply]) as server,
        client(attempts=3, stop=sleeps, timeout=0.3) as http,
        pytest.raises(kind) as caught,
    ):
        http.send(Call("GET", server.url, "call"))
    assert (caught.value.reference, caught.value.exit_code, len(server.seen)) == (reference, 3, 3)
    assert sleeps.waits == [1.0, 2.0]


@pytest.mark.parametrize(
    ("header", "waits"),
    [("7", [7.0, 7.0]), ("0", [1.0, 2.0]), ("99999", [3600.0, 3600.0]), ("soon", [1.0, 2.0]),
     ("Wed, 21 Oct 2015 07:28:00 GMT", [1.0, 2.0]), ("Wed, 21 Oct 2222 07:28:00 GMT", [3600.0, 3600.0])],
)  # fmt: skip
def test_retry_after_can_lengthen_a_wait(header: str, waits: list[float]) -> None:
    sleeps = Sleeps()
    busy = Reply(429, headers={"Retry-After": header})
    with loopback([busy, busy, Reply()]) as server, client(stop=sleeps) as http:
        http.send(Call("GET", server.url, "call"))
    assert sleeps.waits == waits


def test_no_connection_is_an_error_that_names_the_host() -> None:
    with client(attempts=1) as http:
        for url, reference in (
            (f"http://127.0.0.1:{closed_port()}/", "connect-failed"),
            ("http://no-such-host.invalid/", "host-unknown"),
        ):
            with pytest.raises(NetworkError) as caught:
                http.send(Call("GET", url, "call"))
            assert caught.value.reference == reference
        for url in ("ftp://host/", "http://", "nothing", "http://a%20b/"):
            with pytest.raises(InputError, match="not an http or https URL"):
                http.send(Call("GET", url, "call"))


def test_one_attempt_where_none_may_be_repeated() -> None:
    with loopback([Reply(503)]) as server, client() as http, pytest.raises(ServiceBusyError):
        http.send(Call("POST", server.url, "submit"), retry=False)
    assert len(server.seen) == 1


def test_the_waits_end_with_the_time_for_all_of_it() -> None:
    with loopback([Reply(503)]) as server, client(within=2.5) as http, pytest.raises(ServiceBusyError):
        http.send(Call("GET", server.url, "call"))
    assert len(server.seen) == 3  # 1 s and 2 s fit, 4 s do not


def test_a_stop_ends_a_wait_and_lets_no_request_begin() -> None:
    stop = Stop()
    with loopback([Reply(503)]) as server, client(stop=stop, attempts=10) as http:
        threading.Timer(0.2, stop.request, ["test"]).start()
        begun = time.monotonic()
        for _ in range(2):
            with pytest.raises(Stopped):
                http.send(Call("GET", server.url, "call"))
    assert time.monotonic() - begun < 5
    assert len(server.seen) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_followed_for_get_and_never_a_success_of_post(status: int) -> None:
    there = Reply(status, headers={"Location": "/there"})
    with loopback([there, Reply(200, b"there")]) as server, client() as http:
        assert http.send(Call("GET", f"{server.url}/here", "call")).body == b"there"
    with loopback([there]) as server, client() as http, pytest.raises(ServiceError) as caught:
        http.send(Call("POST", f"{server.url}/here", "call", content=b"x"))
    assert (caught.value.reference, len(server.seen)) == ("redirect-refused", 1)


def test_redirects_have_borders() -> None:
    with loopback([Reply()]) as other, client() as http:
        for target in (f"{other.url}/there", "ftp://host/", "/"):
            with loopback([Reply(302, headers={"Location": target})]) as server, pytest.raises(ServiceError) as caught:
                http.send(Call("GET", server.url, "call"))
            assert caught.value.reference == "redirect-refused"
    assert not other.seen


def test_five_redirects_are_followed_and_no_sixth() -> None:
    on = Reply(302, headers={"Location": "/on"})
    with loopback([on] * 5 + [Reply(200, b"there"), *[on] * 6]) as server, client() as http:
        assert http.send(Call("GET", server.url, "call")).body == b"there"
        with pytest.raises(ServiceError, match="more than 5 times"):
            http.send(Call("GET", server.url, "call"))


def test_a_stream_tells_a_stall_from_a_break_and_takes_the_body_as_it_comes() -> None:
    def read(reply: Any) -> bytes:
        with (
            loopback([reply]) as server,
            client() as http,
            http.stream(Call("GET", server.url, "download", timeout=0.3)) as response,
        ):
            return b"".join(response.iter_raw())

    assert read(Reply(200, b"body")) == b"body"
    with pytest.raises(StalledError):
        read(Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nab", then="stall"))
    with pytest.raises(NetworkError):
        read(CUT)


def test_a_peek_needs_no_credentials_and_no_success() -> None:
    with loopback([Reply(401, b"who?")]) as server, client() as http:
        answer = http.peek("GET", server.url)
    assert (answer.status, answer.body) == (401, b"")
    assert server.seen[0].authorization is None


@pytest.mark.parametrize(("status", "by"), [(407, "by the proxy p"), (502, "by host, or by the proxy p before it")])
def test_what_a_proxy_may_have_answered_names_it(status: int, by: str) -> None:
    where = RequestContext("send", "load", "GET", "http://host/x", "p")
    assert error_for(Answer(status, httpx.Headers(), b""), where, transient={502}).message.endswith(by)


def test_each_thread_has_its_own_connection_and_keeps_it() -> None:
    with loopback(lambda _: Reply(200, b"ok")) as server, client() as http:
        threads = [
            threading.Thread(target=lambda: [http.send(Call("GET", server.url, "call")) for _ in range(3)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (len(server.seen), server.connections) == (12, 4)


def test_a_request_log_has_neither_bodies_nor_names_of_persons(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(request_log, "listener", lines.append)
    with loopback([Reply(200, b"secret"), Reply(reset=True)]) as server, client(attempts=1) as http:
        http.send(Call("POST", f"{server.url}/fhir/Patient/4711?name=Erika&active", "call", content=b"Erika"))
        with pytest.raises(NetworkError):
            http.send(Call("GET", f"{server.url}/fhir/metadata", "call"))
    assert lines[0].startswith(f"POST {server.url}/fhir/Patient/…: 200, ")
    assert lines[1].startswith(f"GET {server.url}/fhir/metadata: connection-broken")
    assert not any(word in line for line in lines for word in ("4711", "Erika", "secret"))
