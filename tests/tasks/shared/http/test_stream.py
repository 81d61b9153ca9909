# ruff: noqa: SIM117 - the outer block sets the scene, the inner one is what is tested
from __future__ import annotations

import gzip
import time
from collections.abc import Iterator

import httpx
import pytest

from config import AuthConfig
from tasks.shared.errors import NetworkError, ServiceBusyError, ServiceError, StalledError, Stopped
from tasks.shared.http.client import answer_of
from tasks.shared.meter import Meter
from tasks.shared.stop import Stop
from tests.peers.client import Sleeps, client
from tests.peers.server import Raw, Reply, SeenRequest, loopback

LINES = b'{"resourceType":"Patient"}\n' * 50_000
AUTH = AuthConfig(username="user", password="geheim")


def test_a_download_gives_the_bytes_of_the_file_as_they_are() -> None:
    packed = gzip.compress(LINES)
    with loopback([Reply(200, packed, {"Content-Encoding": "gzip"})]) as server, client() as http:
        with http.stream("GET", server.url, operation="download") as response:
            assert response.status_code == 200
            assert response.headers["content-length"] == str(len(packed))
            assert b"".join(response.iter_raw()) == packed
    assert server.seen[0].headers["accept-encoding"] == "identity"


def test_a_range_request_is_passed_on() -> None:
    with loopback([Reply(206, b"rest")]) as server, client() as http:
        headers = {"Range": "bytes=10-", "If-Range": '"abc"'}
        with http.stream("GET", server.url, operation="download", headers=headers) as response:
            assert response.status_code == 206
            assert response.read() == b"rest"
    assert (server.seen[0].headers["range"], server.seen[0].headers["if-range"]) == ("bytes=10-", '"abc"')


def test_a_download_is_attempted_once() -> None:
    sleeps = Sleeps()
    with loopback([Reply(503, b"{}", {"Retry-After": "9"})]) as server, client(sleep=sleeps) as http:
        with pytest.raises(ServiceBusyError) as caught, http.stream("GET", server.url, operation="download"):
            pass
    assert caught.value.retry_after == 9
    assert len(server.seen) == 1
    assert sleeps == []


def test_a_refused_download_keeps_the_answer() -> None:
    body = b'{"resourceType":"OperationOutcome","issue":[{"code":"forbidden"}]}'
    with loopback([Reply(403, body)]) as server, client() as http:
        with pytest.raises(ServiceError, match="forbidden") as caught:
            with http.stream("GET", server.url, operation="download"):
                pass
    answer = answer_of(caught.value)
    assert answer is not None
    assert answer.body == body


def test_statuses_the_caller_accepts_are_given() -> None:
    with loopback([Reply(416)]) as server, client() as http:
        with http.stream("GET", server.url, operation="download", accept={416}) as response:
            assert response.status_code == 416


@pytest.mark.slow
def test_a_body_that_stops_coming_is_a_stall_not_a_timeout() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"
    with loopback([Raw(head + b"some", "stall")]) as server, client() as http:
        with http.stream("GET", server.url, operation="download", timeout=1.0) as response:
            parts = response.iter_raw()
            assert next(parts) == b"some"
            with pytest.raises(StalledError) as caught:
                next(parts)
    assert not caught.value.transient
    assert caught.value.operation == "download"


def test_any_byte_of_a_download_begins_its_window_anew() -> None:
    def slowly() -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"
        for _ in range(10):
            time.sleep(0.03)
            yield b"x"

    with (
        loopback([Raw(slowly())]) as server,
        client() as http,
        http.stream("GET", server.url, operation="download", timeout=0.1) as response,
    ):
        assert b"".join(response.iter_raw()) == b"x" * 10


def test_silence_before_the_answer_is_a_transient_timeout() -> None:
    with loopback([Raw(b"", "stall")]) as server, client() as http, pytest.raises(NetworkError) as caught:
        with http.stream("GET", server.url, operation="download", timeout=0.05):
            pass
    assert caught.value.reference == "timeout"


@pytest.mark.parametrize("then", ["close", "reset"])
def test_a_body_that_breaks_off_is_a_transient_network_error(then: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"
    with loopback([Raw(head + b"some", then)]) as server, client() as http, pytest.raises(NetworkError) as caught:
        with http.stream("GET", server.url, operation="download") as response:
            list(response.iter_raw())
    assert caught.value.reference == "connection-broken"


def test_a_whole_body_may_take_longer_than_the_timeout() -> None:
    ticks = iter(range(0, 10**6, 50))
    with loopback([Reply(200, LINES)]) as server, client(clock=lambda: float(next(ticks)), timeout=20.0) as http:
        with http.stream("GET", server.url, operation="download") as response:
            assert sum(map(len, response.iter_raw())) == len(LINES)


def test_errors_of_the_caller_pass_through_and_the_connection_is_closed() -> None:
    with loopback([Reply(200, LINES)]) as server, client(max_connections=1) as http:
        for _ in range(3):
            with pytest.raises(OSError, match="disk full"):
                with http.stream("GET", server.url, operation="download"):
                    raise OSError("disk full")
    assert len(server.seen) == 3


def test_a_connection_is_used_again_after_a_download_that_was_read() -> None:
    with loopback([Reply(200, LINES)]) as server, client() as http:
        for _ in range(3):
            with http.stream("GET", server.url, operation="download") as response:
                for _part in response.iter_raw():
                    pass
    assert server.connections == 1


def test_credentials_go_to_their_origin_only_unless_the_caller_says_otherwise() -> None:
    with loopback([Reply()]) as home, loopback([Reply()]) as other:
        with client(auth=AUTH, credentials_origin=home.url) as http:
            for choice in (None, True, False):
                for server in (home, other):
                    with http.stream("GET", server.url, operation="download", credentials=choice):
                        pass
    assert [seen.authorization is not None for seen in home.seen] == [True, True, False]
    assert [seen.authorization is not None for seen in other.seen] == [False, True, False]


def test_credentials_of_a_tls_origin_never_leave_tls() -> None:
    seen = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append((str(request.url), "authorization" in request.headers))
        return httpx.Response(200)

    with client(auth=AUTH, credentials_origin="https://a.test", transport=httpx.MockTransport(handle)) as http:
        for url in ("https://a.test:443/", "https://b.test/", "http://a.test/"):
            with http.stream("GET", url, operation="download", credentials=True):
                pass
    assert seen == [("https://a.test/", True), ("https://b.test/", True), ("http://a.test/", False)]


def test_a_mock_transport_can_give_a_download() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=b"file"))
    with client(transport=transport) as http:
        with http.stream("GET", "https://a.test/", operation="download") as response:
            assert list(response.iter_raw()) == [b"file"]


def test_downloads_are_counted() -> None:
    meter = Meter()
    with loopback([Reply(200, LINES)]) as server, client(meter=meter) as http:
        with http.stream("GET", server.url, operation="download") as response:
            response.read()
    assert (meter.requests, meter.retries) == (1, 0)


def test_a_stop_ends_a_download_that_is_silent() -> None:
    stop = Stop()

    def answer(_: SeenRequest) -> Raw:
        return Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome", "stall")

    with loopback(answer) as server, client(stop=stop, timeout=3600) as http:
        http._patience._grace = 0.0
        with http.stream("GET", server.url, operation="download") as response:
            parts = response.iter_raw()
            next(parts)
            stop.request("signal")
            with pytest.raises(Stopped):
                next(parts)
