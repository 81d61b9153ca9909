"""Large bodies are streamed, and every attempt sends the same bytes (document 3 §1)."""

# ruff: noqa: SIM117 - the outer block sets the scene, the inner one is what is tested
from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from config import AuthConfig
from tasks.shared.errors import NetworkError, ServiceError, Stopped, StorageError
from tasks.shared.http.body import SILENCE, SLICE, FileBody
from tasks.shared.stop import Stop
from tests.peers.client import Sleeps, client
from tests.peers.server import Raw, Reply, loopback

CONTENT = os.urandom(3 * SLICE + 17)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "large.bin"
    path.write_bytes(CONTENT)
    return path


def test_a_file_goes_out_with_its_length_and_its_type(file: Path) -> None:
    seen: list[int] = []
    with loopback([Reply(201)]) as server, client() as http:
        content = FileBody(file, len(CONTENT), sent=seen.append)
        headers = {"Content-Type": "application/zip"}
        http.send("PUT", f"{server.url}/Binary/b", operation="upload", content=content, headers=headers)
    request = server.seen[0]
    assert request.body == CONTENT
    assert request.headers["content-length"] == str(len(CONTENT))
    assert "transfer-encoding" not in request.headers
    assert request.headers["content-type"] == "application/zip"
    assert seen == [SLICE, 2 * SLICE, 3 * SLICE, len(CONTENT)]


def test_every_attempt_sends_the_same_bytes_from_the_start(file: Path) -> None:
    replies: list[Reply | Raw] = [Reply(503), Raw(then="reset"), Reply(200)]
    with loopback(replies) as server, client(sleep=Sleeps()) as http:
        http.send("PUT", server.url, operation="upload", content=FileBody(file, len(CONTENT)))
    assert [request.body for request in server.seen] == [CONTENT] * 3


def test_a_401_repeats_the_whole_body_once_with_a_fresh_token(file: Path) -> None:
    from tests.tasks.shared.http.test_credentials import issuing

    with issuing() as (issuer, url):
        auth = AuthConfig.model_validate(
            {
                "oauth_issuer_uri": url,
                "oauth_client_id": issuer.settings.client_id,
                "oauth_client_secret": issuer.settings.client_secret,
            }
        )
        with loopback([Reply(401), Reply(200)]) as server:
            with client(auth=auth, credentials_origin=server.url) as http:
                http.send("PUT", server.url, operation="upload", content=FileBody(file, len(CONTENT)))
    assert [request.body for request in server.seen] == [CONTENT] * 2
    assert server.seen[0].authorization != server.seen[1].authorization


def test_a_file_that_shrinks_is_a_storage_error(file: Path) -> None:
    with loopback([Reply()]) as server, client() as http, pytest.raises(StorageError) as caught:
        http.send("PUT", server.url, operation="upload", content=FileBody(file, len(CONTENT) + 1))
    assert caught.value.reference == "file-changed"


def test_a_file_that_is_gone_is_a_storage_error(tmp_path: Path) -> None:
    with loopback([Reply()]) as server, client() as http, pytest.raises(StorageError) as caught:
        http.send("PUT", server.url, operation="upload", content=FileBody(tmp_path / "x", 5))
    assert caught.value.reference == "file-vanished"


def test_bytes_added_to_the_file_are_not_sent(file: Path) -> None:
    with loopback([Reply()]) as server, client() as http:
        http.send("PUT", server.url, operation="upload", content=FileBody(file, 100))
    assert server.seen[0].body == CONTENT[:100]


class Endless:
    """A body without an end; ``meanwhile`` runs before each piece."""

    length = 1 << 40

    def __init__(self, meanwhile: object = lambda: None) -> None:
        self._meanwhile = meanwhile

    def pieces(self) -> Iterator[bytes]:
        while True:
            self._meanwhile()  # type: ignore[operator]
            yield bytes(SLICE)


@pytest.fixture
def drain() -> Iterator[str]:
    """Yield a server that reads for ever and never answers."""
    listener = socket.create_server(("127.0.0.1", 0))

    def read() -> None:
        with listener.accept()[0] as connection:
            while connection.recv(1 << 20):
                pass

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    thread.join(5)


def test_a_stop_ends_an_upload_that_flows(drain: str) -> None:
    stop = Stop()
    clock = time.monotonic()
    with client(stop=stop, timeout=600) as http:
        http._patience._grace = 0.2
        with pytest.raises(Stopped):
            http.send("PUT", drain, operation="upload", content=Endless(lambda: stop.request("SIGTERM")))
    assert time.monotonic() - clock < 60, "long before the timeout of the request"


def test_the_timeout_is_for_the_whole_upload(drain: str) -> None:
    with client(attempts=1) as http, pytest.raises(NetworkError) as caught:
        http.send("PUT", drain, operation="upload", content=Endless(), timeout=0.3)
    assert caught.value.reference == "timeout"


def test_a_service_that_stops_reading_is_noticed_long_before_the_timeout() -> None:
    assert SILENCE == 120
    with socket.create_server(("127.0.0.1", 0)) as listener, client(attempts=1, timeout=3600) as http:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(NetworkError) as caught:
            http.send("PUT", url, operation="upload", content=Endless(), silence=0.3)
    assert caught.value.reference == "timeout"
    assert time.monotonic() - started < 60, "half of what is waited where nothing else is said"


def test_an_answer_that_nobody_wants_is_not_read(file: Path) -> None:
    huge = Reply(200, b"x" * 100, length=1 << 40)
    with loopback([huge]) as server, client() as http:
        content = FileBody(file, len(CONTENT))
        answer = http.send("PUT", server.url, operation="upload", content=content, wants_body=False)
        assert (answer.status, answer.body) == (200, b"")
        again = http.send("PUT", server.url, operation="upload", content=b"{}", wants_body=False)
    assert again.status == 200
    assert server.connections == 2


def test_of_an_error_the_body_is_read_also_when_nobody_wants_it() -> None:
    outcome = b'{"resourceType":"OperationOutcome","issue":[{"severity":"error","code":"too-long"}]}'
    with loopback([Reply(422, outcome)]) as server, client() as http, pytest.raises(ServiceError, match="too-long"):
        http.send("PUT", server.url, operation="upload", content=b"{}", wants_body=False)
