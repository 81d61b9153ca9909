from __future__ import annotations

import contextlib
import errno
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpcore
import pytest

from config import TlsConfig
from tasks.shared.errors import InputError, NetworkError, Stopped
from tasks.shared.http.sockets import Patience, SocketStream
from tasks.shared.stop import Stop
from tests.peers.client import client
from tests.peers.server import Raw, Reply, SeenRequest, loopback

READ = (httpcore.ReadTimeout, httpcore.ReadError)


def test_what_does_not_happen_is_tried_until_it_is_late() -> None:
    attempts: list[int] = []

    def never() -> None:
        attempts.append(1)
        raise TimeoutError

    with pytest.raises(httpcore.ReadTimeout):
        Patience(Stop()).repeat(never, 1.1, READ)
    assert len(attempts) == 5, "slices of a quarter of a second"


def test_a_time_limit_of_the_network_is_an_error_of_the_connection() -> None:
    def lost() -> None:
        raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

    with pytest.raises(httpcore.ReadError):
        Patience(Stop()).repeat(lost, 10.0, READ)


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

    def answer(_: SeenRequest) -> Raw:
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
            http._patience._stop, http._patience._grace = stop, 0.0
            with pytest.raises(Stopped):
                http.send("GET", f"http://127.0.0.1:{port}/", operation="read")
        for sock in fill:
            sock.close()


def test_a_stop_ends_a_tls_handshake_that_nobody_answers() -> None:
    stop = Stop()
    with socket.create_server(("127.0.0.1", 0)) as listener, client(stop=None, timeout=1800) as http:
        http._patience._stop, http._patience._grace = stop, 0.0
        stop.request("signal")
        with pytest.raises(Stopped):
            http.send("GET", f"https://127.0.0.1:{listener.getsockname()[1]}/", operation="read")


@pytest.mark.parametrize(
    ("first", "again", "pause"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"x", 0.02),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.02),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.0),
    ],
    ids=["byte by byte", "one 100 after the other", "without a pause"],
)
def test_a_head_that_comes_bit_by_bit_has_the_time_of_one_that_does_not_come(
    first: bytes, again: bytes, pause: float
) -> None:
    def drip(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer, contextlib.suppress(OSError):
            peer.sendall(first)
            while True:
                peer.sendall(again)
                time.sleep(pause)

    with socket.create_server(("127.0.0.1", 0)) as listener, client(timeout=0.3, attempts=1) as http:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        began = time.monotonic()
        with pytest.raises(NetworkError) as caught:
            http.send("GET", f"http://127.0.0.1:{listener.getsockname()[1]}/", operation="read")
        assert caught.value.reference == "timeout"
        assert time.monotonic() - began < 3
        http.close()
        thread.join()


@pytest.fixture
def ends() -> Iterator[tuple[SocketStream, socket.socket]]:
    ours, theirs = socket.socketpair()
    stream = SocketStream(ours, Patience(Stop()))
    with theirs:
        yield stream, theirs
        stream.close()


def test_the_head_of_a_request_goes_out_with_its_body(ends: tuple[SocketStream, socket.socket]) -> None:
    stream, peer = ends
    stream.write(b"POST / HTTP/1.1\r\n\r\n")
    assert select.select([peer], [], [], 0)[0] == []
    stream.write(bytes(20_000))
    assert peer.recv(100_000) == b"POST / HTTP/1.1\r\n\r\n" + bytes(20_000)


def test_what_was_written_is_out_before_an_answer_is_waited_for(ends: tuple[SocketStream, socket.socket]) -> None:
    stream, peer = ends
    stream.write(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(httpcore.ReadTimeout):
        stream.read(65536, timeout=0.01)
    assert peer.recv(100) == b"GET / HTTP/1.1\r\n\r\n"


def test_a_body_larger_than_the_buffers_of_the_kernel_arrives_whole(ends: tuple[SocketStream, socket.socket]) -> None:
    stream, peer = ends
    body = bytes(range(256)) * 20_000
    received = bytearray()

    def read() -> None:
        while len(received) < len(body) + 4:
            received.extend(peer.recv(1 << 16))

    reader = threading.Thread(target=read)
    reader.start()
    stream.write(b"head", timeout=10)
    stream.write(body, timeout=10)
    reader.join()
    assert received == b"head" + body


def test_a_service_that_takes_no_bytes_is_a_write_timeout(ends: tuple[SocketStream, socket.socket]) -> None:
    stream, _ = ends
    with pytest.raises(httpcore.WriteTimeout):
        stream.write(bytes(1 << 24), timeout=0.01)


def test_an_answer_that_came_before_the_service_hung_up_is_read(ends: tuple[SocketStream, socket.socket]) -> None:
    stream, peer = ends
    peer.sendall(b"HTTP/1.1 413 X\r\n\r\n")
    peer.close()
    stream.write(b"POST / HTTP/1.1\r\n\r\n")
    assert stream.read(65536, timeout=1) == b"HTTP/1.1 413 X\r\n\r\n"
    with pytest.raises(httpcore.WriteError):
        stream.write(bytes(20_000))


def test_a_large_answer_comes_in_large_pieces(ends: tuple[SocketStream, socket.socket]) -> None:
    stream, peer = ends
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    threading.Thread(target=peer.sendall, args=(bytes(1 << 20),)).start()
    received = 0
    while received < 1 << 20:
        piece = stream.read(65536, timeout=10)
        assert 0 < len(piece) <= 256 * 1024
        received += len(piece)
    assert received == 1 << 20


def test_a_connection_is_used_again_and_opened_anew_for_another_origin() -> None:
    with loopback([Reply()] * 3) as first, loopback([Reply()] * 3) as second, client(max_connections=1) as http:
        for server in (first, first, second, second, first):
            assert http.send("POST", server.url, operation="send", content=b"x").status == 200


def test_an_unreadable_certificate_bundle_is_found_before_any_request_even_for_http(
    tmp_path: Path,
) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        client(tls=TlsConfig(ca_cert_path=tmp_path / "missing.pem"))
