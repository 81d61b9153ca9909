# ruff: noqa: SIM117 - the outer block sets the scene, the inner one is what is tested
from __future__ import annotations

import base64
import json
import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from config import AuthConfig
from tasks.shared.errors import InputError, NetworkError, ServiceBusyError, ServiceError
from tasks.shared.http.client import ServiceClient
from tasks.shared.http.credentials import TokenCache
from tests.conftest import wait_until
from tests.peers.client import Sleeps, client
from tests.peers.lies import Lie
from tests.peers.oauth import IssuerSettings, OAuthIssuer
from tests.peers.server import Loopback, Raw, Reply, SeenRequest, closed_port, loopback

SECRET = "s3cret/with+signs&ümlaut=%20 :end"


def oauth(issuer: str, secret: str = SECRET, **more: Any) -> AuthConfig:
    return AuthConfig(oauth_issuer_uri=issuer, oauth_client_id="sluice", oauth_client_secret=secret, **more)


@contextmanager
def issuing(clock: Any = None, **settings: Any) -> Iterator[tuple[OAuthIssuer, str]]:
    options = {"clock": clock} if clock else {}
    with OAuthIssuer(IssuerSettings(**({"client_secret": SECRET} | settings)), **options) as issuer:
        yield issuer, issuer.url


@contextmanager
def guarded(issuer: OAuthIssuer) -> Iterator[Loopback]:
    """Yield a resource server that takes the issuer's tokens."""

    def answer(seen: SeenRequest) -> Reply:
        scheme, _, token = (seen.authorization or "").partition(" ")
        return Reply(200, b"ok") if scheme == "Bearer" and issuer.accepts(token) else Reply(401, b"{}")

    with loopback(answer) as server:
        yield server


def call(http: ServiceClient, url: str) -> int:
    return http.send("GET", url, operation="read").status


# Basic Auth and API key


def test_basic_auth_goes_in_the_authorization_header() -> None:
    auth = AuthConfig(username="user", password="pä:ss")
    with loopback([Reply()]) as server, client(auth=auth, credentials_origin=server.url) as http:
        call(http, server.url)
    assert server.seen[0].authorization == "Basic " + base64.b64encode("user:pä:ss".encode()).decode()


def test_an_api_key_goes_in_its_own_header_beside_basic_auth() -> None:
    auth = AuthConfig(username="user", password="p", api_key="key", api_key_header="X-Tenant-Key")
    with loopback([Reply()]) as server, client(auth=auth, credentials_origin=server.url) as http:
        call(http, server.url)
    assert server.seen[0].headers["x-tenant-key"] == "key"
    assert (server.seen[0].authorization or "").startswith("Basic ")


def test_an_api_key_goes_beside_a_bearer_token() -> None:
    with issuing() as (issuer, url), guarded(issuer) as server:
        with client(auth=oauth(url, api_key="key"), credentials_origin=server.url) as http:
            assert call(http, server.url) == 200
    assert server.seen[0].headers["x-api-key"] == "key"


def test_a_static_token_is_the_whole_authorization_header() -> None:
    auth = AuthConfig(api_key="Token abc", api_key_header="Authorization")
    with loopback([Reply()]) as server, client(auth=auth, credentials_origin=server.url) as http:
        call(http, server.url)
    assert server.seen[0].authorization == "Token abc"


@pytest.mark.parametrize("other", ["port", "scheme", "host"])
def test_credentials_go_to_their_origin_only(other: str) -> None:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200)

    auth = AuthConfig(username="user", password="p", api_key="key")
    elsewhere = {"port": "https://a.test:8443/", "scheme": "http://a.test/", "host": "https://b.test/"}[other]
    transport = httpx.MockTransport(handle)
    with client(auth=auth, credentials_origin="https://A.test/fhir", transport=transport) as http:
        call(http, "https://a.test:443/fhir/x")
        call(http, elsewhere)
    assert {"authorization", "x-api-key"} <= set(seen[0].headers)
    assert not {"authorization", "x-api-key"} & set(seen[1].headers)


def test_without_an_origin_credentials_go_nowhere() -> None:
    with loopback([Reply()]) as server, client(auth=AuthConfig(username="u", password="p")) as http:
        call(http, server.url)
    assert server.seen[0].authorization is None


@pytest.mark.parametrize("key", ["geheim\n", "geh\reim", "gehéim", " geheim"])
def test_an_api_key_that_cannot_be_sent_is_refused_without_showing_it(key: str) -> None:
    auth = AuthConfig.model_construct(api_key=SecretStr(key))  # the configuration refuses most of them itself
    with pytest.raises(InputError) as caught:
        client("send", auth=auth, credentials_origin="https://a.test")
    assert caught.value.context == "services.send.auth.api_key"
    assert "geh" not in caught.value.render()


@pytest.mark.parametrize("service", ["send", "services.send"])
def test_a_refusal_names_the_auth_block(service: str) -> None:
    auth = AuthConfig(username="user", password="geheim")
    with loopback([Reply(401)]) as server, client(service, auth=auth, credentials_origin=server.url) as http:
        with pytest.raises(ServiceError) as caught:
            call(http, server.url)
    assert caught.value.reference == "service-unauthorized"
    assert "in services.send.auth" in caught.value.render()
    assert len(server.seen) == 1


# OAuth 2.0


@pytest.mark.parametrize("slash", ["", "/"])
def test_the_token_endpoint_is_discovered_and_the_client_is_in_the_form(slash: str) -> None:
    with issuing() as (issuer, url), guarded(issuer) as server:
        with client(auth=oauth(url + slash), credentials_origin=server.url) as http:
            assert call(http, server.url) == 200
    assert (issuer.discovery_requests, issuer.issued) == (1, 1)
    assert issuer.methods_used == ["client_secret_post"]


def test_without_a_discovery_document_keycloaks_path_is_used() -> None:
    with issuing(discovery=False) as (issuer, url), guarded(issuer) as server:
        with client(auth=oauth(url), credentials_origin=server.url) as http:
            assert call(http, server.url) == 200
    assert issuer.issued == 1


@pytest.mark.parametrize(
    ("methods", "advertised", "used"),
    [
        (("client_secret_basic",), True, "client_secret_basic"),
        (("client_secret_basic", "client_secret_post"), True, "client_secret_post"),
        (("client_secret_post", "private_key_jwt"), True, "client_secret_post"),
        (("client_secret_post",), False, "client_secret_post"),
    ],
)
def test_basic_is_used_only_when_the_issuer_offers_nothing_else(
    methods: tuple[str, ...], advertised: bool, used: str
) -> None:
    with issuing(methods=methods, advertise_methods=advertised) as (issuer, url), guarded(issuer) as server:
        with client(auth=oauth(url), credentials_origin=server.url) as http:
            assert call(http, server.url) == 200
    assert issuer.methods_used == [used]


def test_one_token_serves_all_clients_of_the_process() -> None:
    tokens = TokenCache()
    with issuing() as (issuer, url), guarded(issuer) as server:
        for service in ("extractor", "send", "pseudonymizer"):
            with client(service, auth=oauth(url), credentials_origin=server.url, tokens=tokens) as http:
                call(http, server.url)
                call(http, server.url)
    assert (issuer.issued, issuer.discovery_requests) == (1, 1)


def test_a_wrong_secret_does_not_pass_on_the_token_of_the_right_one() -> None:
    tokens = TokenCache()
    with issuing() as (_, url):
        with client(auth=oauth(url), tokens=tokens) as http:
            http.authorize()
        with client(auth=oauth(url, secret="wrong"), tokens=tokens) as http, pytest.raises(ServiceError):
            http.authorize()


def test_threads_that_come_together_fetch_one_token() -> None:
    with issuing() as (issuer, url), guarded(issuer) as server:
        with client(auth=oauth(url), credentials_origin=server.url) as http:
            threads = [threading.Thread(target=call, args=(http, server.url)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert len(server.seen) == 8
    assert issuer.token_requests == 1


def test_a_token_is_replaced_30_seconds_before_it_expires() -> None:
    now = [1000.0]
    with issuing(clock=lambda: now[0], expires_in=300) as (issuer, url), guarded(issuer) as server:
        with client(auth=oauth(url), credentials_origin=server.url, clock=lambda: now[0]) as http:
            call(http, server.url)
            now[0] += 269.9
            call(http, server.url)
            assert issuer.issued == 1
            now[0] += 0.2
            call(http, server.url)
    assert issuer.issued == 2
    assert [seen.authorization for seen in server.seen].count(server.seen[0].authorization) == 2


@pytest.mark.parametrize("settings", [{"expires_in": None}, {"expires_in": 30}])
def test_a_token_without_a_known_lifetime_is_not_kept(settings: dict[str, Any]) -> None:
    with issuing(**settings) as (issuer, url), guarded(issuer) as server:
        with client(auth=oauth(url), credentials_origin=server.url) as http:
            call(http, server.url)
            call(http, server.url)
    assert (issuer.issued, issuer.discovery_requests) == (2, 1)


def test_on_401_the_token_is_dropped_fetched_once_and_the_request_repeated_once() -> None:
    with issuing() as (issuer, url), guarded(issuer) as server:
        sleeps = Sleeps()
        with client(auth=oauth(url), credentials_origin=server.url, sleep=sleeps) as http:
            call(http, server.url)
            issuer.revoke_all()
            answer = http.send("POST", server.url, operation="submit", content=b"body", retry=False)
            assert answer.status == 200
            issuer.revoke_all()
            with http.stream("GET", server.url, operation="download") as response:
                assert response.read() == b"ok"
    assert issuer.issued == 3
    assert [seen.body for seen in server.seen] == [b"", b"body", b"body", b"", b""]
    assert sleeps == []


def test_a_second_401_is_the_services_answer() -> None:
    with issuing() as (issuer, url), loopback([Reply(401, b"{}")]) as server:
        with client(auth=oauth(url), credentials_origin=server.url) as http:
            with pytest.raises(ServiceError) as caught:
                call(http, server.url)
    assert caught.value.status == 401
    assert len(server.seen) == 2
    assert issuer.issued == 2


def test_many_401_at_once_fetch_one_new_token() -> None:
    with issuing() as (issuer, url), guarded(issuer) as server:
        with client(auth=oauth(url), credentials_origin=server.url) as http:
            call(http, server.url)
            issuer.revoke_all()
            threads = [threading.Thread(target=call, args=(http, server.url)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert issuer.issued == 2


def test_the_token_is_obtained_on_demand_for_the_preflight() -> None:
    with issuing() as (issuer, url), client(auth=oauth(url)) as http:
        http.authorize()
        http.authorize()
    assert issuer.issued == 1
    with client(auth=AuthConfig(username="u", password="p")) as http:
        http.authorize()
    with client() as http:
        http.authorize()


def test_a_refused_client_is_a_terminal_error_that_names_the_block_and_no_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    for methods in (("client_secret_post",), ("client_secret_basic",)):
        with issuing(methods=methods, client_secret="other") as (issuer, url):
            with client("send", auth=oauth(url)) as http, pytest.raises(ServiceError) as caught:
                http.authorize()
        error = caught.value
        assert error.reference == "oauth-client"
        assert error.status == 401
        assert "services.send.auth" in error.message
        assert "invalid_client" in error.message
        assert issuer.token_requests == 1
        shown = error.render() + "".join(traceback.format_exception(error)) + caplog.text
        for hidden in (SECRET, "s3cret", "Invalid client or", base64.b64encode(SECRET.encode()).decode()):
            assert hidden not in shown


def test_an_issuer_in_trouble_is_tried_again() -> None:
    sleeps = Sleeps()
    with issuing() as (issuer, url), guarded(issuer) as server:
        issuer.discovery_faults = [Reply(503)]
        issuer.faults = [Reply(502), Reply(429, headers={"Retry-After": "7"})]
        with client(auth=oauth(url), credentials_origin=server.url, sleep=sleeps) as http:
            assert call(http, server.url) == 200
    assert sleeps == [1.0, 1.0, 7.0]


@pytest.mark.parametrize("retry", [True, False])
def test_an_issuer_that_stays_in_trouble_is_transient_after_one_budget_of_attempts(retry: bool) -> None:
    with issuing() as (issuer, url), loopback([Reply()]) as server:
        issuer.faults = [Reply(503)] * 20
        with client("send", auth=oauth(url), credentials_origin=server.url, attempts=3) as http:
            with pytest.raises(ServiceBusyError) as caught:
                http.send("GET", server.url, operation="read", retry=retry)
    assert issuer.token_requests == 3
    assert caught.value.operation == "obtain token"
    assert server.seen == []


def test_an_issuer_that_is_not_there_is_transient() -> None:
    with client(auth=oauth(f"http://127.0.0.1:{closed_port()}"), attempts=2) as http, pytest.raises(NetworkError):
        http.authorize()


class CountingLock:
    """A lock that counts the calls to it, also while it is held."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self.came = 0

    def __enter__(self) -> None:
        with self._counting:
            self.came += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_the_failure_of_a_fetch_is_shared_by_those_who_waited_for_it() -> None:
    release = threading.Event()

    def answer(_: SeenRequest) -> Reply:
        release.wait(60)
        return Reply(403)

    errors: list[ServiceError] = []
    tokens, lock = TokenCache(), CountingLock()
    with loopback(answer) as server, client(auth=oauth(server.url), tokens=tokens) as http:
        tokens.entry(server.url, "sluice", SECRET).lock = lock  # type: ignore[assignment]

        def authorize() -> None:
            try:
                http.authorize()
            except ServiceError as error:
                errors.append(error)

        threads = [threading.Thread(target=authorize) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: lock.came == 4)
        release.set()
        for thread in threads:
            thread.join()
    assert [error.reference for error in errors] == ["oauth-issuer"] * 4
    assert len(server.seen) == 1
    assert len({id(error) for error in errors}) == 4


@pytest.mark.parametrize(
    "document",
    [
        b"<html>login</html>",
        b"[]",
        b"{}",
        b'{"token_endpoint": 7}',
        b'{"token_endpoint": "/token"}',
        b'{"token_endpoint": "ftp://issuer.test/token"}',
        b'{"token_endpoint": "http://[bad"}',
        b"[" * 100_000,
    ],
)
def test_a_discovery_document_that_is_none_is_terminal(document: bytes) -> None:
    with loopback([Reply(200, document)]) as server, client("send", auth=oauth(server.url)) as http:
        with pytest.raises(ServiceError) as caught:
            http.authorize()
    assert caught.value.reference == "oauth-issuer"
    assert "services.send.auth.oauth_issuer_uri" in caught.value.render()


@pytest.mark.parametrize("status", [400, 401, 403, 405])
def test_only_404_leads_to_keycloaks_path(status: int) -> None:
    with loopback([Reply(status)]) as server, client(auth=oauth(server.url)) as http:
        with pytest.raises(ServiceError) as caught:
            http.authorize()
    assert caught.value.status == status
    assert len(server.seen) == 1


ISSUER, DIFFERS, NONE = "https://id.example/realms/x", "oidc-issuer-differs", "oauth-issuer"


def named(**changes: Any) -> Callable[[Any], Any]:
    return lambda honest: {key: value for key, value in (honest | changes).items() if value is not None}


LIES: dict[str, Lie] = {
    "metadata: another issuer": Lie(named(issuer="https://elsewhere.example/realms/x"), DIFFERS),
    "metadata: another realm": Lie(named(issuer="https://id.example/realms/y"), DIFFERS),
    "metadata: a realm that begins like ours": Lie(named(issuer=f"{ISSUER}y"), DIFFERS),
    "metadata: the issuer without TLS": Lie(named(issuer="http://id.example/realms/x"), DIFFERS),
    "metadata: the issuer on another port": Lie(named(issuer="https://id.example:8443/realms/x"), DIFFERS),
    "metadata: the issuer in capitals": Lie(named(issuer=ISSUER.upper()), DIFFERS),
    "metadata: no issuer": Lie(named(issuer=None), DIFFERS),
    "metadata: an issuer that is a list": Lie(named(issuer=[ISSUER]), DIFFERS),
    "metadata: an issuer that is no URL": Lie(named(issuer="canary"), DIFFERS),
    "metadata: an issuer with a line break": Lie(named(issuer="https://id.example/canary\n"), DIFFERS),
    "metadata: a token endpoint without TLS": Lie(named(token_endpoint="http://id.example/token"), DIFFERS),
    "metadata: a token endpoint without TLS on loopback": Lie(named(token_endpoint="http://127.0.0.1/token"), DIFFERS),
    "metadata: no token endpoint": Lie(named(token_endpoint=None), NONE),
    "metadata: a token endpoint that is no URL": Lie(named(token_endpoint="/token"), NONE),
    "metadata: HTML": Lie(lambda _: "<html>canary</html>", NONE),
    "metadata: a JSON list": Lie(lambda honest: [honest], NONE),
    "metadata: a token endpoint on another host": Lie(
        named(token_endpoint="https://tokens.example/token"),
        None,
        "gives a warning: it is named once, in a plan and in the log",
    ),
}


def discovered(issuer: str, tell: Callable[[Any], Any], seen: list[httpx.Request]) -> httpx.MockTransport:
    """Return an issuer that is honest except for its metadata; ``seen`` gets its requests."""

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if request.method == "POST":
            return httpx.Response(200, json={"access_token": "t", "expires_in": 600})
        document = tell({"issuer": issuer, "token_endpoint": f"{issuer}/token"})
        if document is None:
            return httpx.Response(404)
        return httpx.Response(200, text=document if isinstance(document, str) else json.dumps(document))

    return httpx.MockTransport(handle)


@pytest.mark.parametrize("name", LIES)
def test_an_issuer_that_lies_does_not_get_the_client_secret(name: str) -> None:
    lie = LIES[name]
    seen: list[httpx.Request] = []
    with client("send", auth=oauth(ISSUER), transport=discovered(ISSUER, lie.tell, seen)) as http:
        if lie.reference is None:
            http.authorize()
            return
        with pytest.raises(ServiceError) as caught:
            http.authorize()
    assert caught.value.reference == lie.reference
    assert "services.send.auth.oauth_issuer_uri" in caught.value.render()
    assert "canary" not in caught.value.render()
    assert [(request.method, request.content) for request in seen] == [("GET", b"")]


def test_the_hint_names_the_issuer_that_the_server_gave() -> None:
    public = "https://id.hospital.example/realms/x?canary=1"
    transport = discovered(ISSUER, named(issuer=public), [])
    with client("send", auth=oauth(ISSUER), transport=transport) as http, pytest.raises(ServiceError) as caught:
        http.authorize()
    assert "give the issuer https://id.hospital.example/realms/x:" in str(caught.value.hint)
    assert "canary" not in caught.value.render()


@pytest.mark.parametrize("configured", [ISSUER, f"{ISSUER}/"])
@pytest.mark.parametrize("given", [ISSUER, f"{ISSUER}/"])
def test_a_slash_at_the_end_of_an_issuer_makes_no_difference(configured: str, given: str) -> None:
    seen: list[httpx.Request] = []
    with client(auth=oauth(configured), transport=discovered(ISSUER, named(issuer=given), seen)) as http:
        http.authorize()
    assert [request.method for request in seen] == ["GET", "POST"]


@pytest.mark.parametrize("metadata", [True, False])
@pytest.mark.parametrize(
    ("issuer", "sent"),
    [
        ("http://127.0.0.1:8080", True), ("http://[::1]:8080", True), ("http://localhost", True),
        ("http://10.0.0.7/realms/x", True), ("http://192.168.1.9", True), ("http://[fd00::7]", True),
        ("http://8.8.8.8/realms/x", False), ("http://[2a00:1450::7]", False), ("https://8.8.8.8", True),
    ],
)  # fmt: skip
def test_without_tls_the_secret_goes_to_an_issuer_that_is_near_and_to_no_other(
    issuer: str, *, sent: bool, metadata: bool
) -> None:
    seen: list[httpx.Request] = []
    transport = discovered(issuer, lambda honest: honest if metadata else None, seen)
    with (
        client(auth=oauth(issuer), transport=transport) as http,
        nullcontext() if sent else pytest.raises(ServiceError, match="without TLS"),
    ):
        http.authorize()
    assert [request.method for request in seen] == ["GET", "POST"][: 1 + sent]


def test_a_token_endpoint_on_another_host_is_named_by_each_client_once() -> None:
    told: list[str] = []
    transport = discovered(ISSUER, named(token_endpoint="https://tokens.example/token"), [])
    tokens = TokenCache()
    for _ in range(2):
        with client("send", auth=oauth(ISSUER), transport=transport, tokens=tokens, warn=told.append) as http:
            http.authorize()
            http.authorize()
    words = "services.send.auth: the token endpoint of the issuer id.example is on another host, tokens.example"
    assert told == [words] * 2


@pytest.mark.parametrize(
    "token",
    [
        {"token_type": "Bearer"},
        {"access_token": ""},
        {"access_token": 7},
        {"access_token": "geheim\r\nX: y"},
        {"access_token": "gehéim"},
        {"access_token": "geheim", "token_type": "mac"},
    ],
)
def test_a_token_that_cannot_be_used_is_terminal(token: dict[str, Any]) -> None:
    body = json.dumps({"expires_in": 60} | token).encode()
    with loopback([Reply(404), Reply(200, body)]) as server, client(auth=oauth(server.url)) as http:
        with pytest.raises(ServiceError) as caught:
            http.authorize()
    assert caught.value.reference == "oauth-issuer"
    assert "geh" not in caught.value.render()


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"", b'{"error": "geheim"}', b'{"error": ["x"]}'])
@pytest.mark.parametrize("status", [200, 400])
def test_an_answer_that_is_no_token_is_terminal(status: int, body: bytes) -> None:
    with loopback([Reply(404), Reply(status, body)]) as server, client(auth=oauth(server.url)) as http:
        with pytest.raises(ServiceError) as caught:
            http.authorize()
    assert caught.value.reference in ("oauth-issuer", "oauth-refused")
    assert "geheim" not in caught.value.render()


@pytest.mark.parametrize("lifetime", ["600", 600.5, "600.5"])
def test_a_lifetime_may_be_spelled_in_several_ways(lifetime: Any) -> None:
    body = json.dumps({"access_token": "t", "expires_in": lifetime}).encode()
    replies: list[Reply | Raw] = [Reply(404), Reply(200, body)]
    with loopback(replies) as server, client(auth=oauth(server.url)) as http:
        http.authorize()
        http.authorize()
    assert len(server.seen) == 2


@pytest.mark.parametrize("lifetime", [b'"soon"', b"-1", b"0", b"null", b"1e999", b"[]", b"NaN"])
def test_a_lifetime_that_makes_no_sense_means_that_the_token_is_not_kept(lifetime: bytes) -> None:
    body = b'{"access_token": "t", "expires_in": %s}' % lifetime
    with loopback([Reply(404), Reply(200, body)]) as server, client(auth=oauth(server.url)) as http:
        http.authorize()
        http.authorize()
    assert [seen.method for seen in server.seen] == ["GET", "POST", "POST"]


def test_the_issuer_gets_no_credentials_of_the_service_and_no_secret_in_a_url() -> None:
    body = json.dumps({"access_token": "t", "expires_in": 60}).encode()

    def answer(seen: SeenRequest) -> Reply:
        return Reply(404) if "well-known" in seen.target else Reply(200, body)

    with loopback(answer) as server:
        auth = oauth(server.url, api_key="key")
        with client(auth=auth, credentials_origin=server.url) as http:
            call(http, f"{server.url}/fhir")
    assert [seen.target for seen in server.seen] == [
        "/.well-known/openid-configuration", "/protocol/openid-connect/token", "/fhir",
    ]  # fmt: skip
    assert all("x-api-key" not in seen.headers and seen.authorization is None for seen in server.seen[:2])
    assert server.seen[1].headers["content-type"].startswith("application/x-www-form-urlencoded")
    assert server.seen[2].authorization == "Bearer t"
