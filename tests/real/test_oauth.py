"""OAuth 2.0 client credentials against a certified issuer: npm's ``oidc-provider`` (document 3 §1, "OAuth 2.0").

The resource server behind the issuer lets nobody through without a token that the issuer itself recognises.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from config import AuthConfig
from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.fhir.app import fhir_service
from tasks.send.step import run as send_data
from tasks.shared.errors import NetworkError, ServiceError
from tasks.shared.http.client import ServiceClient
from tests.conftest import free_ports
from tests.peers.client import Sleeps, client
from tests.real.job import job, observation, write
from tests.real.programs import directory, program, running, scratch

pytestmark = pytest.mark.real("oidc")

HOW = "python tests/real/get.py oidc"
SECRET = "s3cret/with+signs & spaces:%="
BY_POST = "by-post"
BY_BASIC = "by basic:+"


@dataclass
class Issuer:
    """An issuer on one port; it can be stopped and started, and forgets its tokens then."""

    port: int = field(default_factory=free_ports)
    lifetime: int = 60
    methods: tuple[str, ...] = ("client_secret_post", "client_secret_basic")
    upstream: str | None = None
    asked: list[str] = field(default_factory=list)
    """Every token request: how the client identified itself, and the status."""
    refused: int = 0
    """Requests to the resource server that had no good token."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def up(self) -> Iterator[None]:
        """Run while the block runs; what it has logged is known after the block."""
        node = program("node", "SLUICE_REAL_NODE", "install Node.js 18 or newer")
        modules = directory("SLUICE_REAL_OIDC", "node_modules/oidc-provider", HOW)
        script = Path(__file__).with_name("oidc.mjs")
        how = (str(self.port), str(self.lifetime), ",".join(self.methods), self.upstream or "")
        command: tuple[str | Path, ...] = (node, script, modules, *how)
        with scratch() as home:
            log = home / "log"
            with running("oidc-provider", command, log, ends_with_input=True) as issuer:
                issuer.wait(lambda: issuer.line("ready") is not None, 60)
                yield
            lines = log.read_text().splitlines()
        self.asked += [line.removeprefix("token ") for line in lines if line.startswith("token ")]
        self.refused += lines.count("refused")
        assert not [line for line in lines if line.startswith("server error")]


class TokenClock:
    """A clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def auth(issuer: Issuer, client_id: str = BY_POST, secret: str = SECRET) -> AuthConfig:
    return AuthConfig.model_validate(
        {"oauth_issuer_uri": issuer.url, "oauth_client_id": client_id, "oauth_client_secret": secret}
    )


def reading(issuer: Issuer, **options: object) -> ServiceClient:
    """Return a client whose credentials go to the resource server."""
    return client(**({"auth": auth(issuer), "credentials_origin": issuer.url} | options))  # type: ignore[arg-type]


def read(http: ServiceClient, issuer: Issuer) -> int:
    return http.send("GET", f"{issuer.url}/fhir/Patient", operation="read").status


def test_a_token_is_fetched_once_and_used_for_every_request() -> None:
    issuer = Issuer()
    with issuer.up(), reading(issuer) as http:
        assert [read(http, issuer) for _ in range(5)] == [200] * 5
    assert issuer.asked == ["post 200"]
    assert issuer.refused == 0


def test_client_id_and_secret_go_in_the_form_body_when_the_issuer_takes_both() -> None:
    issuer = Issuer()
    with issuer.up(), reading(issuer) as http:
        http.authorize()
    assert issuer.asked == ["post 200"]


def test_an_issuer_with_only_client_secret_basic_gets_every_character_intact() -> None:
    issuer = Issuer(methods=("client_secret_basic",))
    with issuer.up(), reading(issuer, auth=auth(issuer, BY_BASIC)) as http:
        assert read(http, issuer) == 200
    assert issuer.asked == ["basic 200"]


def test_a_token_is_replaced_thirty_seconds_before_it_expires() -> None:
    clock = TokenClock()
    issuer = Issuer(lifetime=60)
    with issuer.up(), reading(issuer, clock=clock) as http:
        read(http, issuer)
        clock.now += 29
        read(http, issuer)
        clock.now += 2
        read(http, issuer)
    assert issuer.asked == ["post 200", "post 200"]
    assert issuer.refused == 0


def test_a_token_that_lives_less_than_the_margin_is_not_kept() -> None:
    issuer = Issuer(lifetime=20)
    with issuer.up(), reading(issuer) as http:
        assert [read(http, issuer) for _ in range(3)] == [200] * 3
    assert issuer.asked == ["post 200"] * 3


def test_a_token_that_the_service_rejects_is_replaced_once_and_the_request_repeated() -> None:
    issuer = Issuer()
    with reading(issuer) as http:
        with issuer.up():
            read(http, issuer)
        with issuer.up():  # it has forgotten what it gave out
            assert read(http, issuer) == 200
    assert issuer.asked == ["post 200", "post 200"]
    assert issuer.refused == 1


@pytest.mark.parametrize(
    ("client_id", "secret"), [(BY_POST, "geheim-canary"), ("nobody-canary", SECRET)], ids=["secret", "client"]
)
def test_a_wrong_client_is_a_terminal_error_that_shows_neither_secret_nor_request(client_id: str, secret: str) -> None:
    sleeps = Sleeps()
    issuer = Issuer()
    wrong = auth(issuer, client_id, secret)
    with issuer.up(), reading(issuer, auth=wrong, sleep=sleeps) as http, pytest.raises(ServiceError) as caught:
        read(http, issuer)
    assert (caught.value.reference, caught.value.status) == ("oauth-client", 401)
    assert "canary" not in caught.value.render() + repr(caught.value)
    assert sleeps == []
    assert issuer.asked == ["post 401"]


def test_an_issuer_that_is_away_is_a_network_error_after_the_retries() -> None:
    sleeps = Sleeps()
    issuer = Issuer()
    with reading(issuer, sleep=sleeps, attempts=3) as http, pytest.raises(NetworkError) as caught:
        read(http, issuer)
    assert caught.value.reference == "connect-failed"
    assert sleeps == [1.0, 2.0]


def test_the_send_step_works_through_a_server_that_wants_tokens(tmp_path: Path) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(serve_in_thread(fhir_service()))
        issuer = Issuer(upstream=store.url)
        stack.enter_context(issuer.up())
        write(tmp_path, "a.ndjson", *(observation(f"o{number}") for number in range(250)))
        credentials = {"oauth_issuer_uri": issuer.url, "oauth_client_id": BY_POST, "oauth_client_secret": SECRET}
        send = {"send_as": "direct_resource_load", "url": issuer.url, "auth": credentials}
        assert send_data(job(tmp_path, {"send": send})).resources_out == 250
    assert issuer.refused == 0
    assert set(issuer.asked) == {"post 200"}
