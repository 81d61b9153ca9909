# ruff: noqa: SIM117 - the outer block sets the scene, the inner one is what is tested
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from config import AuthConfig
from tasks.shared.errors import ServiceError
from tasks.shared.http.client import ServiceClient
from tests.peers.client import client
from tests.peers.server import Raw, Reply, SeenRequest, loopback

REDIRECTS = [301, 302, 303, 307, 308]
AUTH = AuthConfig(username="user", password="geheim", api_key="schluessel")


def read_by_stream(http: ServiceClient, url: str, **options: Any) -> bytes:
    with http.stream("GET", url, operation="download", **options) as response:
        return b"".join(response.iter_raw())


def read_by_send(http: ServiceClient, url: str) -> bytes:
    return http.send("GET", url, operation="read").body


READERS = [read_by_send, read_by_stream]


@pytest.mark.parametrize("status", REDIRECTS)
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_redirect_is_never_the_success_of_a_request_that_changes_something(method: str, status: int) -> None:
    with loopback([Reply(status, headers={"Location": "/elsewhere?token=geheim"})]) as server, client() as http:
        with pytest.raises(ServiceError) as caught:
            http.send(method, server.url, operation="submit", content=b"x")
    assert caught.value.reference == "redirect-refused"
    assert caught.value.status == status
    assert "geheim" not in caught.value.render()
    assert len(server.seen) == 1


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("status", REDIRECTS)
def test_a_read_follows_a_redirect_within_the_origin(read: Callable[..., bytes], status: int) -> None:
    def answer(seen: SeenRequest) -> Reply:
        if seen.target == "/a/old":
            return Reply(status, headers={"Location": "new?x=1"})
        return Reply(200, seen.target.encode())

    with loopback(answer) as server, client(auth=AUTH, credentials_origin=server.url) as http:
        assert read(http, f"{server.url}/a/old") == b"/a/new?x=1"
    assert [seen.authorization is not None for seen in server.seen] == [True, True]


def test_head_follows_too() -> None:
    replies: list[Reply | Raw] = [Reply(302, headers={"Location": "/b"}), Reply(200, headers={"X": "1"}, length=5)]
    with loopback(replies) as server, client() as http:
        answer = http.send("HEAD", server.url, operation="check")
    assert answer.headers["content-length"] == "5"
    assert [seen.method for seen in server.seen] == ["HEAD", "HEAD"]


@pytest.mark.parametrize("read", READERS)
def test_five_redirects_are_followed_and_six_are_not(read: Callable[..., bytes]) -> None:
    def answer(seen: SeenRequest) -> Reply:
        left = int(seen.target[1:])
        return Reply(302, headers={"Location": f"/{left - 1}"}) if left else Reply(200, b"there")

    with loopback(answer) as server, client() as http:
        assert read(http, f"{server.url}/5") == b"there"
        with pytest.raises(ServiceError) as caught:
            read(http, f"{server.url}/6")
    assert caught.value.reference == "redirect-loop"


@pytest.mark.parametrize("read", READERS)
def test_a_redirect_to_another_origin_is_an_error_that_names_both_without_query(read: Callable[..., bytes]) -> None:
    with loopback([Reply()]) as other:
        location = f"{other.url}/file?signature=geheim"
        with loopback([Reply(302, headers={"Location": location})]) as server, client() as http:
            with pytest.raises(ServiceError) as caught:
                read(http, f"{server.url}/file")
    assert caught.value.reference == "redirect-cross-origin"
    assert f":{server.port}" in caught.value.message
    assert f":{other.port}" in caught.value.message
    assert "geheim" not in caught.value.render()
    assert other.seen == []


def test_a_download_allowed_to_leave_the_origin_leaves_every_credential_behind() -> None:
    with loopback([Reply(200, b"file", {"Set-Cookie": "a=b"})]) as other:
        location = f"{other.url}/file"
        reply = Reply(302, headers={"Location": location, "Set-Cookie": "session=1"})
        with loopback([reply]) as server, client(auth=AUTH, credentials_origin=server.url) as http:
            headers = {"Accept": "application/fhir+ndjson", "Authorization": "Bearer own", "Cookie": "c=d"}
            assert read_by_stream(http, server.url, allow_cross_origin=True, headers=headers) == b"file"
    assert {"authorization", "x-api-key", "cookie"} <= set(server.seen[0].headers)
    assert not {"authorization", "x-api-key", "cookie"} & set(other.seen[0].headers)
    assert other.seen[0].headers["accept"] == "application/fhir+ndjson"


def test_credentials_come_back_with_the_redirect_to_their_own_origin() -> None:
    replies: list[Reply | Raw] = []
    with loopback(replies) as home, loopback([Reply(302, headers={"Location": f"{home.url}/file"})]) as other:
        replies += [Reply(302, headers={"Location": other.url}), Reply(200, b"file")]
        with client(auth=AUTH, credentials_origin=home.url) as http:
            assert read_by_stream(http, home.url, allow_cross_origin=True) == b"file"
    assert other.seen[0].authorization is None
    assert home.seen[1].authorization is not None


@pytest.mark.parametrize("location", ["ftp://127.0.0.1/x", "mailto:a@b.test", "file:///etc/passwd", "http://[::1"])
def test_a_redirect_to_no_http_url_is_an_error(location: str) -> None:
    with loopback([Reply(302, headers={"Location": location})]) as server, client() as http:
        with pytest.raises(ServiceError) as caught:
            read_by_send(http, server.url)
    assert caught.value.reference == "redirect-invalid"


def test_a_redirect_out_of_tls_is_refused_even_for_a_download_that_may_leave() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(302, headers={"Location": "http://service.test/file"})

    with client(transport=httpx.MockTransport(handle)) as http, pytest.raises(ServiceError) as caught:
        read_by_stream(http, "https://service.test/file", allow_cross_origin=True)
    assert caught.value.reference == "redirect-downgrade"


@pytest.mark.parametrize(("status", "headers"), [(302, {}), (304, {"Location": "/x"}), (300, {})])
def test_other_3xx_answers_are_unexpected(status: int, headers: dict[str, str]) -> None:
    with loopback([Reply(status, headers=headers)]) as server, client() as http:
        with pytest.raises(ServiceError) as caught:
            read_by_send(http, server.url)
    assert caught.value.reference == "service-unexpected"
