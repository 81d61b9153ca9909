# ruff: noqa: SIM117 - the outer block sets the scene, the inner one is what is tested
from __future__ import annotations

import gc
import gzip
import logging
import threading
import time
import tracemalloc
import zlib

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import AuthConfig
from tasks.shared.errors import InputError, InternalError, NetworkError, ServiceBusyError, ServiceError, Stopped
from tasks.shared.http.body import BrokenBodyError, unpacked
from tasks.shared.http.call import Call, Hop
from tasks.shared.http.client import DEFAULT_TRANSIENT, answer_of
from tasks.shared.meter import Meter
from tasks.shared.stop import Stop
from tests.peers.client import Sleeps, client
from tests.peers.server import Raw, Reply, SeenRequest, closed_port, loopback

OUTCOME = (
    b'{"resourceType":"OperationOutcome","issue":[{"severity":"error","code":"processing",'
    b'"diagnostics":"Erika Mustermann, born 1964"},{"code":"not-found"},{"code":"Erika"}]}'
)


def test_an_answer_has_status_headers_and_the_whole_body() -> None:
    with loopback([Reply(201, b"made", {"Content-Location": "/job/1"})]) as server, client() as http:
        answer = http.send("POST", f"{server.url}/fhir/$de-identify?x=1", operation="de-identify", content=b"{}")
    assert (answer.status, answer.body, answer.headers["content-location"]) == (201, b"made", "/job/1")
    assert (server.seen[0].method, server.seen[0].target) == ("POST", "/fhir/$de-identify?x=1")


def test_requests_say_who_asks_and_carry_the_callers_headers() -> None:
    with loopback([Reply()]) as server, client() as http:
        headers = {"Content-Type": "application/fhir+json", "accept-encoding": "identity"}
        http.send("post", server.url, operation="send", content=b"body", headers=headers)
    seen = server.seen[0]
    assert seen.method == "POST"
    assert seen.body == b"body"
    assert seen.headers["user-agent"].startswith("sluice/")
    assert seen.headers["content-type"] == "application/fhir+json"
    assert seen.headers["accept-encoding"] == "identity"
    assert seen.headers["host"] == f"127.0.0.1:{server.port}"


def test_connections_are_used_again() -> None:
    with loopback([Reply(body=b"x")]) as server, client() as http:
        for _ in range(5):
            http.send("GET", server.url, operation="read")
    assert server.connections == 1


def test_cookies_are_not_kept() -> None:
    with loopback([Reply(headers={"Set-Cookie": "session=1; Path=/"})]) as server, client() as http:
        http.send("GET", server.url, operation="read")
        http.send("GET", server.url, operation="read")
    assert all("cookie" not in seen.headers for seen in server.seen)


def calls() -> list[Call | Hop]:
    """Return the calls and hops in memory."""
    return [one for one in gc.get_objects() if isinstance(one, Call | Hop)]


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_bodies_are_freed_with_the_call_and_not_by_the_garbage_collector(size: int) -> None:
    """Else three chunks of a large Bundle under way become six: a cycle waits until the collector comes."""
    with loopback([Reply(body=b"x" * size)]) as server, client() as http:
        http.send("POST", server.url, operation="send", content=b"y" * size)
        gc.collect()
        gc.disable()
        others = calls()  # another test of this process may have left some
        try:
            http.send("POST", server.url, operation="send", content=b"y" * size)
            assert [one for one in calls() if not any(one is other for other in others)] == []
        finally:
            gc.enable()


@pytest.mark.parametrize("status", sorted(DEFAULT_TRANSIENT))
def test_transient_statuses_are_tried_again_with_the_same_bytes(status: int) -> None:
    sleeps = Sleeps()
    body = bytes(range(256)) * 1000
    replies: list[Reply | Raw] = [Reply(status), Reply(status), Reply(200, b"ok")]
    with loopback(replies) as server, client(sleep=sleeps) as http:
        assert http.send("POST", server.url, operation="send", content=body).body == b"ok"
    assert [seen.body for seen in server.seen] == [body] * 3
    assert sleeps == [1.0, 2.0]


def test_after_max_attempts_the_last_error_is_raised() -> None:
    sleeps = Sleeps()
    with loopback([Reply(503), Reply(503), Reply(429)]) as server, client(attempts=3, sleep=sleeps) as http:
        with pytest.raises(ServiceBusyError) as caught:
            http.send("POST", server.url, operation="send")
    assert len(server.seen) == 3
    assert caught.value.status == 429
    assert caught.value.transient
    assert len(sleeps) == 2


def test_retry_after_raises_the_wait_and_is_on_the_error() -> None:
    sleeps = Sleeps()
    reply = Reply(503, headers={"Retry-After": "17"})
    with loopback([reply]), loopback([reply]) as server, client(attempts=2, sleep=sleeps) as http:
        with pytest.raises(ServiceBusyError) as caught:
            http.send("GET", server.url, operation="read")
    assert caught.value.retry_after == 17
    assert sleeps == [17.0]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 413, 415, 422, 501])
def test_every_other_status_is_terminal(status: int) -> None:
    with loopback([Reply(status)]) as server, client() as http, pytest.raises(ServiceError) as caught:
        http.send("POST", server.url, operation="send")
    assert len(server.seen) == 1
    assert caught.value.status == status
    assert caught.value.operation == "send"
    assert caught.value.hint


def test_statuses_the_caller_accepts_are_answers() -> None:
    with loopback([Reply(404, b"gone"), Reply(503), Reply(302)]) as server, client() as http:
        for status in (404, 503, 302):
            assert http.send("GET", server.url, operation="poll", accept={404, 503, 302}).status == status
    assert len(server.seen) == 3


def test_the_caller_says_which_statuses_are_transient() -> None:
    with loopback([Reply(500)]) as server, client() as http, pytest.raises(ServiceError) as caught:
        http.send("GET", server.url, operation="poll", transient={429})
    assert len(server.seen) == 1
    assert caught.value.reference == "service-failed"


def test_a_call_that_must_not_be_repeated_is_made_once() -> None:
    with loopback([Reply(503)]) as server, client() as http, pytest.raises(ServiceBusyError):
        http.send("POST", server.url, operation="submit", retry=False)
    assert len(server.seen) == 1


def test_an_error_names_service_operation_host_status_and_issue_codes_only() -> None:
    with loopback([Reply(422, OUTCOME)]) as server, client() as http, pytest.raises(ServiceError) as caught:
        http.send("POST", f"{server.url}/fhir?patient=4711#frag", operation="load transaction")
    error = caught.value
    text = error.render()
    for part in ("pseudonymizer", "load transaction", "422", "127.0.0.1", "processing, not-found"):
        assert part in text
    assert error.context == f"POST {server.url}/fhir"
    for part in ("Erika", "1964", "4711"):
        assert part not in text + repr(error) + repr(answer_of(error)) + str(error)


def test_the_whole_answer_hangs_on_the_error() -> None:
    with loopback([Reply(422, OUTCOME, {"X-A": "1"})]) as server, client() as http:
        with pytest.raises(ServiceError) as caught:
            http.send("POST", server.url, operation="send")
    answer = answer_of(caught.value)
    assert answer is not None
    assert (answer.body, answer.headers["x-a"]) == (OUTCOME, "1")
    assert answer.issue_codes() == ("processing", "not-found")
    assert answer_of(ValueError()) is None


@pytest.mark.parametrize(
    "answer",
    [
        Raw(b"", "close"),
        Raw(b"", "reset"),
        Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", "close"),
        Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", "reset"),
        Raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "close"),
    ],
    ids=["closed", "reset", "cut body", "reset body", "no HTTP"],
)
def test_a_broken_connection_is_a_transient_network_error(answer: Raw) -> None:
    with loopback([answer]) as server, client(attempts=2) as http, pytest.raises(NetworkError) as caught:
        http.send("POST", server.url, operation="send", content=b"x")
    assert caught.value.reference == "connection-broken"
    assert len(server.seen) == 2


def test_a_broken_connection_is_tried_again() -> None:
    with loopback([Raw(b"", "reset"), Reply(200, b"ok")]) as server, client() as http:
        assert http.send("POST", server.url, operation="send", content=b"x").body == b"ok"


def test_nobody_listening_is_a_transient_network_error() -> None:
    meter = Meter()
    with client(attempts=3, meter=meter) as http, pytest.raises(NetworkError) as caught:
        http.send("GET", f"http://127.0.0.1:{closed_port()}/a?b=c", operation="read")
    assert caught.value.reference == "connect-failed"
    assert "b=c" not in caught.value.render()
    assert (meter.requests, meter.retries) == (3, 2)


def test_an_unknown_host_name_is_a_transient_network_error() -> None:
    with client(attempts=1) as http, pytest.raises(NetworkError) as caught:
        http.send("GET", "http://nobody.invalid/", operation="read")
    assert caught.value.reference == "host-unknown"


def test_silence_is_a_timeout_and_is_tried_again() -> None:
    with loopback([Raw(b"", "stall"), Reply(200)]) as server, client(timeout=0.5) as http:
        assert http.send("GET", server.url, operation="read").status == 200
    with loopback([Raw(b"", "stall")]) as server, client(attempts=1) as http, pytest.raises(NetworkError) as caught:
        http.send("GET", server.url, operation="read", timeout=0.05)
    assert caught.value.reference == "timeout"


def test_the_timeout_is_for_the_whole_request_not_for_each_piece() -> None:
    ticks = iter(range(0, 10_000, 4))
    with loopback([Reply(200, b"x" * 3_000_000)]) as server:
        with client(attempts=1, clock=lambda: float(next(ticks))) as http:
            with pytest.raises(NetworkError) as caught:
                http.send("GET", server.url, operation="read", timeout=10)
    assert caught.value.reference == "timeout"


def test_an_answer_beyond_the_limit_is_refused() -> None:
    with loopback([Reply(200, b"x" * 1001)]) as server, client() as http:
        assert len(http.send("GET", server.url, operation="read", max_answer_bytes=1001).body) == 1001
        with pytest.raises(ServiceError) as caught:
            http.send("GET", server.url, operation="read", max_answer_bytes=1000)
    assert caught.value.reference == "answer-too-large"


def test_packed_answers_are_unpacked_and_limited_by_their_real_size() -> None:
    body = b'{"resourceType":"Bundle"}' * 1000
    replies: list[Reply | Raw] = [
        Reply(200, gzip.compress(body), {"Content-Encoding": "gzip"}),
        Reply(200, zlib.compress(body), {"Content-Encoding": "deflate"}),
        Reply(200, gzip.compress(body), {"Content-Encoding": "gzip"}),
    ]
    with loopback(replies) as server, client() as http:
        assert http.send("GET", server.url, operation="read").body == body
        assert http.send("GET", server.url, operation="read").body == body
        with pytest.raises(ServiceError, match="more than 1000 bytes"):
            http.send("GET", server.url, operation="read", max_answer_bytes=1000)
    assert server.seen[0].headers["accept-encoding"] == "gzip, deflate"


PACKED = {
    "gzip": gzip.compress(OUTCOME * 9),
    "deflate": zlib.compress(OUTCOME * 9),
    "deflate without a header": zlib.compress(OUTCOME * 9, wbits=-zlib.MAX_WBITS),
}


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_answer_ends_where_it_says(name: str) -> None:
    body, headers = PACKED[name], {"Content-Encoding": name.partition(" ")[0]}
    wrong = [body[: len(body) // 2], body[:-1], body + b"x", body + b"\0" * 20, body + body[:12]]
    for reply in wrong:
        with loopback([Reply(200, reply, headers), Reply(200, body, headers)]) as server, client() as http:
            assert http.send("GET", server.url, operation="read").body == OUTCOME * 9
        assert len(server.seen) == 2, "a broken transfer is repeated"


@pytest.mark.slow
@given(
    name=st.sampled_from([*PACKED]),
    place=st.floats(0, 1),
    more=st.binary(min_size=1, max_size=9),
    piece=st.integers(1, 90),
)
def test_a_packed_body_cut_or_continued_anywhere_is_broken(name: str, place: float, more: bytes, piece: int) -> None:
    def read(body: bytes) -> bytes:
        return b"".join(unpacked((body[at : at + piece] for at in range(0, len(body), piece)), name.partition(" ")[0]))

    body = PACKED[name]
    assert read(body) == OUTCOME * 9
    assert read(b"") == b"", "an answer without a body may have the header"
    for wrong in (body[: max(1, int(place * len(body) - 1))], body + more):
        with pytest.raises(BrokenBodyError):
            read(wrong)


def test_a_gzip_answer_may_have_several_members() -> None:
    body = gzip.compress(b"first ") + gzip.compress(b"") + gzip.compress(b"second")
    with loopback([Reply(200, body, {"Content-Encoding": "gzip"})]) as server, client() as http:
        assert http.send("GET", server.url, operation="read").body == b"first second"


@pytest.mark.slow
def test_a_packed_answer_is_unpacked_in_small_pieces() -> None:
    packed = gzip.compress(b"0" * 300_000_000)
    pieces = unpacked([packed], "gzip")
    tracemalloc.start()
    try:
        assert sum(map(len, pieces)) == 300_000_000
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("encoding", "body"), [("gzip", b"no gzip"), ("br", b"x"), ("zstd", b"x")])
def test_an_encoding_that_cannot_be_read_is_terminal(encoding: str, body: bytes) -> None:
    with loopback([Reply(200, body, {"Content-Encoding": encoding})]) as server, client() as http:
        with pytest.raises(ServiceError) as caught:
            http.send("GET", server.url, operation="read")
    assert caught.value.reference == "answer-encoding"


@pytest.mark.parametrize("url", ["", "fhir", "ftp://host/", "http://", "http://a b/?secret=1", "http://h:x/?secret=1"])
def test_what_is_no_http_url_is_an_input_error(url: str) -> None:
    with client() as http, pytest.raises(InputError) as caught:
        http.send("GET", url, operation="read")
    assert caught.value.reference == "url-invalid"
    assert "secret" not in caught.value.render()


@pytest.mark.parametrize("value", ["geheim\r\nX: y", "gehéim"])
def test_a_header_that_cannot_be_sent_is_refused_without_its_value(value: str) -> None:
    with loopback([Reply()]) as server, client() as http, pytest.raises((InputError, InternalError)) as caught:
        http.send("GET", server.url, operation="read", headers={"X-Key": value})
    assert "geh" not in caught.value.render()
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_retry_is_logged_in_one_line_without_url_body_or_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    auth = AuthConfig(username="u", password="geheim")
    with loopback([Reply(503, OUTCOME), Raw(b"", "close"), Reply(200)]) as server:
        with client(auth=auth, credentials_origin=server.url) as http:
            http.send("POST", f"{server.url}/p?q=geheim", operation="load", content=b"geheim")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "pseudonymizer: load failed (status 503), attempt 1 of 5, next one in 1.0 s",
        "pseudonymizer: load failed (connection-broken), attempt 2 of 5, next one in 2.0 s",
    ]
    assert {record.name for record in caplog.records} == {"sluice.http"}


def test_requests_are_counted_with_their_retries() -> None:
    meter = Meter()
    with loopback([Reply(503), Reply(200)]) as server, client(meter=meter) as http:
        http.send("GET", server.url, operation="read")
        http.send("GET", server.url, operation="read")
    assert (meter.requests, meter.retries) == (3, 1)
    assert meter.percentile(0.5) is not None


def test_a_stop_ends_the_wait_between_attempts() -> None:
    stop = Stop()

    def answer(_: SeenRequest) -> Reply:
        stop.request("signal")
        return Reply(503, headers={"Retry-After": "3600"})

    with loopback(answer) as server, client(stop=stop, sleep=None) as http, pytest.raises(Stopped):
        http.send("GET", server.url, operation="read")
    assert len(server.seen) == 1


def test_a_stop_keeps_a_request_from_beginning() -> None:
    stop = Stop()
    stop.request("signal")
    with loopback([Reply()]) as server, client(stop=stop) as http, pytest.raises(Stopped):
        http.send("GET", server.url, operation="read")
    assert server.seen == []


def test_many_threads_share_a_client() -> None:
    def answer(seen: SeenRequest) -> Reply:
        return Reply(200, seen.body)

    wrong = []
    meter = Meter()
    with loopback(answer) as server, client(max_connections=4, meter=meter) as http:

        def work(number: int) -> None:
            for turn in range(20):
                body = f"{number}-{turn}".encode()
                if http.send("POST", server.url, operation="echo", content=body).body != body:
                    wrong.append(body)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert server.connections <= 4
    assert (len(server.seen), meter.requests, meter.retries) == (160, 160, 0)


def test_a_large_body_arrives_whole() -> None:
    body = bytes(range(256)) * 20_000
    with loopback([Reply()]) as server, client() as http:
        http.send("POST", server.url, operation="send", content=body)
    assert server.seen[0].body == body


def test_the_transport_can_be_replaced() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/broken":
            raise httpx.ConnectError("geheim", request=request)
        return httpx.Response(200, content=request.content)

    with client(attempts=1, transport=httpx.MockTransport(handle)) as http:
        assert http.send("POST", "https://service.test/", operation="echo", content=b"x").body == b"x"
        with pytest.raises(NetworkError) as caught:
            http.send("POST", "https://service.test/broken", operation="echo")
    assert "geheim" not in caught.value.render()


def test_a_defect_is_reported_without_the_values_that_caused_it() -> None:
    def handle(_: httpx.Request) -> httpx.Response:
        raise KeyError("geheim")

    with client(transport=httpx.MockTransport(handle)) as http, pytest.raises(InternalError) as caught:
        http.send("GET", "https://service.test/", operation="echo")
    assert "geheim" not in caught.value.render()
    assert "KeyError" in caught.value.render()


def test_any_answer_means_that_a_service_is_reachable() -> None:
    auth = AuthConfig(username="u", password="p")
    for status in (200, 302, 401, 404, 500, 503):
        with loopback([Reply(status)]) as server, client(auth=auth, credentials_origin=server.url) as http:
            assert http.peek("GET", server.url).status == status
        assert server.seen[0].authorization is None
        assert len(server.seen) == 1


def test_no_answer_means_that_a_service_is_not_reachable() -> None:
    with client() as http, pytest.raises(NetworkError) as caught:
        http.peek("GET", f"http://127.0.0.1:{closed_port()}/")
    assert caught.value.operation == "reach"


def test_an_answer_that_is_under_way_when_a_stop_comes_is_still_used() -> None:
    stop = Stop()

    def answer(_: SeenRequest) -> Reply:
        stop.request("signal")
        time.sleep(0.6)  # longer than the client's slices
        return Reply(202, b"handle")

    with loopback(answer) as server, client(stop=stop) as http:
        assert http.send("POST", server.url, operation="submit", retry=False).body == b"handle"
