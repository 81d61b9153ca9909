from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from deployments.sandbox.common.oauth import IssuerFault, IssuerSettings, OAuthIssuer
from deployments.sandbox.common.serve import serve_in_thread

GRANT = {"grant_type": "client_credentials"}
POST = GRANT | {"client_id": "sluice", "client_secret": "sandbox-secret"}


class IssuerClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> IssuerClock:
    return IssuerClock()


@pytest.fixture
def issuer(clock: IssuerClock) -> OAuthIssuer:
    return OAuthIssuer(clock=clock)


@pytest.fixture
def http(issuer: OAuthIssuer) -> Iterator[httpx.Client]:
    with (
        serve_in_thread(issuer.app) as served,
        httpx.Client(base_url=served.url, trust_env=False, timeout=60) as client,
    ):
        yield client


def basic(name: str, secret: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()}


def test_the_metadata_names_the_token_endpoint_and_the_methods(http: httpx.Client) -> None:
    document = http.get("/.well-known/openid-configuration").json()
    assert document["token_endpoint"] == f"{http.base_url}/token".replace("//token", "/token")
    assert document["token_endpoint_auth_methods_supported"] == ["client_secret_post", "client_secret_basic"]


def test_without_discovery_the_metadata_is_404_and_keycloaks_path_works(
    http: httpx.Client, issuer: OAuthIssuer
) -> None:
    issuer.settings = IssuerSettings(discovery=False)
    assert http.get("/.well-known/openid-configuration").status_code == 404
    assert http.post("/protocol/openid-connect/token", data=POST).status_code == 200
    assert issuer.discovery_requests == 1


def test_a_client_in_the_form_gets_a_token_that_expires(
    http: httpx.Client, issuer: OAuthIssuer, clock: IssuerClock
) -> None:
    answer = http.post("/token", data=POST).json()
    assert (answer["token_type"], answer["expires_in"]) == ("Bearer", 300)
    assert issuer.accepts(answer["access_token"])
    clock.now = 300
    assert not issuer.accepts(answer["access_token"])
    assert not issuer.accepts("made up")
    assert (issuer.issued, issuer.methods_used) == (1, ["client_secret_post"])


def test_a_client_in_the_header_is_decoded_as_the_standard_says(http: httpx.Client, issuer: OAuthIssuer) -> None:
    issuer.settings = IssuerSettings(client_id="a b", client_secret="ü:%&+")
    headers = basic("a+b", "%C3%BC%3A%25%26%2B")
    assert http.post("/token", data=GRANT, headers=headers).status_code == 200
    assert issuer.methods_used == ["client_secret_basic"]


def test_a_method_that_is_not_offered_is_refused(http: httpx.Client, issuer: OAuthIssuer) -> None:
    issuer.settings = IssuerSettings(methods=("client_secret_basic",))
    assert http.post("/token", data=POST).status_code == 401
    assert http.post("/token", data=GRANT, headers=basic("sluice", "sandbox-secret")).status_code == 200


@pytest.mark.parametrize("form", [POST | {"client_secret": "wrong"}, POST | {"client_id": "other"}, GRANT])
def test_an_unknown_client_is_refused(http: httpx.Client, issuer: OAuthIssuer, form: dict[str, str]) -> None:
    answer = http.post("/token", data=form)
    assert (answer.status_code, answer.json()["error"]) == (401, "invalid_client")
    assert issuer.issued == 0


def test_garbage_in_the_header_is_an_unknown_client(http: httpx.Client) -> None:
    assert http.post("/token", data=GRANT, headers={"Authorization": "Basic !"}).status_code == 401


def test_only_client_credentials_are_granted(http: httpx.Client) -> None:
    answer = http.post("/token", data=POST | {"grant_type": "password"})
    assert (answer.status_code, answer.json()["error"]) == (400, "unsupported_grant_type")


def test_a_lifetime_may_be_left_out(http: httpx.Client, issuer: OAuthIssuer, clock: IssuerClock) -> None:
    issuer.settings = replace(issuer.settings, expires_in=None)
    answer = http.post("/token", data=POST).json()
    assert "expires_in" not in answer
    clock.now = 10**9
    assert issuer.accepts(answer["access_token"])


def test_tokens_can_be_revoked(http: httpx.Client, issuer: OAuthIssuer) -> None:
    token = http.post("/token", data=POST).json()["access_token"]
    issuer.revoke_all()
    assert not issuer.accepts(token)


def test_faults_are_given_first_come_first_served(http: httpx.Client, issuer: OAuthIssuer) -> None:
    issuer.faults = [IssuerFault(503, headers={"Retry-After": "3"}), IssuerFault(200, b"<html>")]
    issuer.discovery_faults = [IssuerFault(500)]
    first, second, third = (http.post("/token", data=POST) for _ in range(3))
    assert (first.status_code, first.headers["retry-after"]) == (503, "3")
    assert second.text == "<html>"
    assert third.status_code == 200
    assert http.get("/.well-known/openid-configuration").status_code == 500
    assert issuer.token_requests == 3


def test_the_secret_does_not_show() -> None:
    assert "sandbox-secret" not in repr(IssuerSettings())
