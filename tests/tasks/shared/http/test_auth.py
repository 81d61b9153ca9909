"""Who authenticates how, and where the credentials go."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, quote_plus

import pytest

from config import AuthConfig
from tasks.shared.errors import InputError, NetworkError, ServiceBusyError, ServiceError
from tasks.shared.http import auth
from tasks.shared.http.client import Call, ServiceClient
from tests.peers.client import client
from tests.peers.server import Loopback, Reply, SeenRequest, loopback

BASIC = {"username": "user", "password": "pässword"}
ENCODED = "Basic " + base64.b64encode("user:pässword".encode()).decode()


def authorized(server: Loopback, block: dict[str, Any], **more: Any) -> ServiceClient:
    return client(auth=AuthConfig.model_validate(block), url=server.url, **more)


def test_basic_and_api_key_go_together() -> None:
    block = BASIC | {"api_key": "key-1", "api_key_header": "X-Gate"}
    with loopback([Reply()]) as server, authorized(server, block) as http:
        http.send(Call("GET", server.url, "call"))
    assert server.seen[0].authorization == ENCODED
    assert server.seen[0].headers["x-gate"] == "key-1"


def test_a_static_token_can_be_the_whole_authorization() -> None:
    with (
        loopback([Reply()]) as server,
        authorized(server, {"api_key": "Token abc", "api_key_header": "Authorization"}) as http,
    ):
        http.send(Call("GET", server.url, "call"))
    assert server.seen[0].authorization == "Token abc"


def test_credentials_go_to_their_origin_alone_and_never_along_a_redirect() -> None:
    with loopback([Reply(200, b"x")]) as other:
        away = Reply(302, headers={"Location": f"{other.url}/file"})
        with loopback([away]) as server, authorized(server, BASIC | {"api_key": "key-1"}) as http:
            with http.stream(Call("GET", server.url, "download"), follow=True) as response:
                assert response.read() == b"x"
            http.send(Call("GET", other.url, "call"))
            with http.stream(Call("GET", other.url, "download"), credentials=True):
                pass
    assert [seen.authorization for seen in server.seen] == [ENCODED]
    assert [seen.authorization for seen in other.seen] == [None, None, ENCODED]
    assert "x-api-key" not in other.seen[0].headers


def test_credentials_of_a_server_with_tls_go_to_no_file_without_it() -> None:
    with (
        loopback([Reply(200, b"x")]) as plain,
        client(auth=AuthConfig.model_validate(BASIC), url="https://server.example") as http,
        http.stream(Call("GET", plain.url, "download"), credentials=True),
    ):
        pass
    assert plain.seen[0].authorization is None


@pytest.mark.parametrize("value", ["ümlaut", "key—1"])
def test_a_value_that_no_header_takes_is_an_error_that_does_not_quote_it(value: str) -> None:
    with loopback([Reply()]) as server, pytest.raises(InputError) as caught:
        authorized(server, {"api_key": value})
    assert caught.value.reference == "auth-value"
    assert value not in caught.value.render()


class Issuer(Loopback):
    """An OAuth 2.0 issuer and a service that takes its tokens, in one server; ``said`` by path overrides an answer.

    Each has a client of its own: a process keeps a token by issuer and client.
    """

    def __init__(self, said: dict[str, Callable[[], Reply]] | None = None, **metadata: Any) -> None:
        self.said = said or {}
        self.metadata = metadata
        self.tokens: list[str] = []
        self.valid: set[str] = set()
        super().__init__(self._answer)
        self.block = {
            "oauth_issuer_uri": f"{self.url}/realms/r",
            "oauth_client_id": f"a&b-{uuid.uuid4()}",
            "oauth_client_secret": "s&cret",
        }

    def _answer(self, seen: SeenRequest) -> Reply:
        if said := self.said.get(seen.target):
            return said()
        if seen.target.endswith("/openid-configuration"):
            known = {"issuer": f"{self.url}/realms/r", "token_endpoint": f"{self.url}/token"} | self.metadata
            return Reply(200, json.dumps(known).encode())
        if seen.target in ("/token", "/realms/r/protocol/openid-connect/token"):
            self.tokens.append(f"token-{len(self.tokens)}")
            self.valid.add(self.tokens[-1])
            return Reply(200, json.dumps({"access_token": self.tokens[-1], "expires_in": 300}).encode())
        token = (seen.authorization or "").removeprefix("Bearer ")
        return Reply(200, b"data") if token in self.valid else Reply(401)

    def asked(self, path: str) -> list[SeenRequest]:
        return [seen for seen in self.seen if seen.target == path]


def test_a_token_is_fetched_once_for_all_clients_and_renewed_once_after_a_401() -> None:
    with Issuer() as issuer:
        for _ in range(2):
            with authorized(issuer, issuer.block) as http:
                assert http.send(Call("GET", f"{issuer.url}/data", "call")).body == b"data"
        form = parse_qs(issuer.asked("/token")[0].body.decode())
        assert (form["client_id"], form["client_secret"]) == ([issuer.block["oauth_client_id"]], ["s&cret"])
        assert form["grant_type"] == ["client_credentials"]
        assert len(issuer.tokens) == 1
        issuer.valid.clear()
        with authorized(issuer, issuer.block) as http:
            assert http.send(Call("GET", f"{issuer.url}/data", "call")).body == b"data"
            assert len(issuer.tokens) == 2
            issuer.said["/data"] = lambda: Reply(401)
            with pytest.raises(ServiceError, match="401"):
                http.send(Call("GET", f"{issuer.url}/data", "call"))
        assert len(issuer.asked("/data")) == 6


@pytest.mark.parametrize(("lifetime", "fetched"), [(300, 1), (31, 1), (30, 2), (None, 2), ("299", 1)])
def test_a_token_is_kept_until_30_seconds_before_its_end(lifetime: Any, fetched: int) -> None:
    with Issuer() as issuer:
        issuer.said["/token"] = lambda: Reply(
            200, json.dumps({"access_token": "t"} | ({"expires_in": lifetime} if lifetime else {})).encode()
        )
        issuer.valid.add("t")
        with authorized(issuer, issuer.block) as http:
            for _ in range(2):
                http.send(Call("GET", f"{issuer.url}/data", "call"))
        assert len(issuer.asked("/token")) == fetched


def test_a_token_is_renewed_30_seconds_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(auth.time, "monotonic", lambda: now[0])
    with Issuer() as issuer, authorized(issuer, issuer.block) as http:
        for now[0], fetched in ((0.0, 1), (269.0, 1), (271.0, 2)):
            http.send(Call("GET", f"{issuer.url}/data", "call"))
            assert len(issuer.tokens) == fetched


def test_without_discovery_keycloaks_path_is_asked() -> None:
    with Issuer({"/realms/r/.well-known/openid-configuration": lambda: Reply(404)}) as issuer:
        with authorized(issuer, issuer.block) as http:
            http.send(Call("GET", f"{issuer.url}/data", "call"))
        assert issuer.asked("/realms/r/protocol/openid-connect/token")


def test_where_only_basic_is_offered_id_and_secret_are_form_encoded_in_it() -> None:
    with Issuer(token_endpoint_auth_methods_supported=["client_secret_basic"]) as issuer:
        with authorized(issuer, issuer.block) as http:
            http.send(Call("GET", f"{issuer.url}/data", "call"))
        request = issuer.asked("/token")[0]
    pair = quote_plus(issuer.block["oauth_client_id"]) + ":s%26cret"
    assert request.authorization == "Basic " + base64.b64encode(pair.encode()).decode()
    assert b"s&cret" not in request.body
    assert b"s%26cret" not in request.body


NO_REALM = dict.fromkeys(
    ("/realms/r/.well-known/openid-configuration", "/realms/r/protocol/openid-connect/token"),
    lambda: Reply(404, b'{"error":"Realm does not exist"}'),
)
"""Answers of Keycloak 26."""


@pytest.mark.parametrize(
    ("said", "metadata", "reference"),
    [
        ({"/token": lambda: Reply(401, b'{"error":"invalid_client"}')}, {}, "oauth-client"),
        ({"/token": lambda: Reply(400, b'{"error":"invalid_scope"}')}, {}, "oauth-client"),
        ({"/token": lambda: Reply(200, b"<html>")}, {}, "oauth-issuer"),
        ({"/token": lambda: Reply(200, b'{"access_token":"t","token_type":"mac"}')}, {}, "oauth-issuer"),
        ({}, {"issuer": "https://other.example"}, "oauth-issuer"),
        ({}, {"token_endpoint": "no url"}, "oauth-issuer"),
        ({"/realms/r/.well-known/openid-configuration": lambda: Reply(200, b"[]")}, {}, "oauth-issuer"),
        (NO_REALM, {}, "oauth-issuer"),
    ],
)
def test_what_an_issuer_refuses_is_named_without_a_secret(
    said: dict[str, Any], metadata: dict[str, Any], reference: str
) -> None:
    with (
        Issuer(said, **metadata) as issuer,
        authorized(issuer, issuer.block) as http,
        pytest.raises(ServiceError) as caught,
    ):
        http.send(Call("GET", f"{issuer.url}/data", "call"))
    assert caught.value.reference == reference
    assert "services.pseudonymizer.auth" in caught.value.render()
    assert "s&cret" not in caught.value.render()
    assert not issuer.asked("/data")


def test_an_issuer_that_is_busy_is_transient_and_has_a_budget_of_its_own() -> None:
    with Issuer({"/token": lambda: Reply(503)}) as issuer, authorized(issuer, issuer.block, attempts=2) as http:
        with pytest.raises(ServiceBusyError) as caught:
            http.send(Call("GET", f"{issuer.url}/data", "call"))
        assert caught.value.operation == "obtain token"
        assert len(issuer.asked("/token")) == 2


def test_the_secret_of_a_near_issuer_may_go_to_any_host() -> None:
    with (
        Issuer(token_endpoint="http://far.example/token") as issuer,
        authorized(issuer, issuer.block, attempts=1) as http,
        pytest.raises(NetworkError, match="far"),
    ):
        http.authorize()


def test_the_secret_does_not_leave_tls_for_an_issuer_that_is_far() -> None:
    far = "http://9.9.9.9"  # a public address; what goes there ends at the proxy, which answers as the issuer
    with Issuer(issuer=f"{far}/realms/r", token_endpoint=f"{far}/token") as issuer:
        block = issuer.block | {"oauth_issuer_uri": f"{far}/realms/r"}
        with (
            authorized(issuer, block, environ={"HTTP_PROXY": issuer.url}) as http,
            pytest.raises(ServiceError, match="without TLS"),
        ):
            http.authorize()
        assert len(issuer.seen) == 1
