"""Requests through a forward proxy that requires a password: squid (document 3 §1, "Proxies").

The proxy alone can resolve the names of the servers behind it, so a request that gets through went through it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from config import TlsConfig
from deployments.sandbox.common.serve import Certificate, Served, serve_in_thread
from deployments.sandbox.fhir.app import fhir_service
from tasks.send.step import run as send_data
from tasks.shared.errors import NetworkError, ServiceError, TransientError
from tests.conftest import free_ports, wait_until
from tests.peers.client import Sleeps, client
from tests.real.conftest import Measure
from tests.real.job import job, observation, write
from tests.real.programs import HOST
from tests.real.squid_proxy import FORBIDDEN, NAME, Squid, squid_running

pytestmark = pytest.mark.real("squid")


@pytest.fixture(scope="module")
def squid() -> Iterator[Squid]:
    with squid_running() as running_squid:
        yield running_squid


@pytest.fixture
def fhir() -> Iterator[Served]:
    with serve_in_thread(fhir_service()) as served:
        yield served


@dataclass(frozen=True)
class Authority:
    """A certificate authority, and a server certificate for ``NAME`` that it has issued."""

    bundle: Path
    certificate: Certificate


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    ca = trustme.CA()
    issued = ca.issue_cert(NAME)
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(tmp_path / "chain.pem"), append=True)
    return Authority(tmp_path / "ca.pem", Certificate(tmp_path / "chain.pem", tmp_path / "key.pem"))


def test_plain_http_is_forwarded_by_the_proxy_with_its_credentials(squid: Squid, fhir: Served) -> None:
    with client(environ={"HTTP_PROXY": squid.url}) as http:
        answer = http.send("GET", f"http://{NAME}:{fhir.port}/fhir/metadata", operation="read")
        assert answer.status == 200
        # A probe leaves the answer unread, which squid may log as aborted: so the log is looked at before it.
        wait_until(lambda: ("TCP_MISS/200", "GET", NAME) in squid.served())
        assert http.peek("GET", f"http://{NAME}:{fhir.port}/fhir/metadata").status == 200


def test_https_goes_through_connect_and_the_servers_certificate_is_verified(squid: Squid, authority: Authority) -> None:
    environ = {"HTTPS_PROXY": squid.url}
    with serve_in_thread(fhir_service(), certificate=authority.certificate) as fhir:
        url = f"https://{NAME}:{fhir.port}/fhir/metadata"
        with client(environ=environ, tls=TlsConfig(ca_cert_path=authority.bundle)) as http:
            assert http.send("GET", url, operation="read").status == 200
        with client(environ=environ) as http, pytest.raises(ServiceError) as caught:
            http.send("GET", url, operation="read")
    assert caught.value.reference == "tls-untrusted"


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("credentials", ["", "site%20user:canary@"], ids=["none", "wrong"])
def test_407_is_a_terminal_error_over_http_and_over_https(squid: Squid, scheme: str, credentials: str) -> None:
    sleeps = Sleeps()
    environ = {f"{scheme}_proxy": f"http://{credentials}{HOST}:{squid.port}"}
    with client(environ=environ, sleep=sleeps) as http, pytest.raises(ServiceError) as caught:
        http.send("GET", f"{scheme}://{NAME}:1/fhir/metadata", operation="read")
    assert (caught.value.reference, caught.value.status) == ("proxy-authentication", 407)
    assert caught.value.hint
    assert "canary" not in caught.value.render()
    assert sleeps == []


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_target_that_the_proxy_forbids_is_a_terminal_error(squid: Squid, scheme: str) -> None:
    sleeps = Sleeps()
    with client(environ={f"{scheme}_proxy": squid.url}, sleep=sleeps) as http, pytest.raises(ServiceError) as caught:
        http.send("GET", f"{scheme}://{FORBIDDEN}:1/", operation="read")
    assert caught.value.status == 403
    assert sleeps == []


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_the_proxy_does_not_reach_is_tried_again(squid: Squid, scheme: str) -> None:
    sleeps = Sleeps()
    with client(environ={f"{scheme}_proxy": squid.url}, sleep=sleeps, attempts=3) as http:
        with pytest.raises(NetworkError) as caught:
            http.peek("GET", f"{scheme}://{NAME}:1/fhir/metadata")
        assert caught.value.reference == "proxy-unreachable"
        with pytest.raises(TransientError):
            http.send("GET", f"{scheme}://{NAME}:1/fhir/metadata", operation="read")
    assert sleeps == [1.0, 2.0]


def test_a_proxy_that_is_away_is_a_transient_error_that_names_the_proxy() -> None:
    port = free_ports()
    away = {"http_proxy": f"http://{HOST}:{port}"}
    with client(environ=away, attempts=2) as http, pytest.raises(NetworkError) as caught:
        http.send("GET", f"http://{NAME}/", operation="read")
    assert str(port) in caught.value.render()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_send_step_loads_a_server_behind_the_proxy(
    squid: Squid, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, figure: Measure
) -> None:
    monkeypatch.setenv(f"{scheme.upper()}_PROXY", squid.url)
    certificate = authority.certificate if scheme == "https" else None
    write(tmp_path, "a.ndjson", *(observation(f"o{number}", note=[{"text": "x" * 1000}]) for number in range(500)))
    with serve_in_thread(fhir_service(), certificate=certificate) as fhir:
        send = {"send_as": "direct_resource_load", "url": f"{scheme}://{NAME}:{fhir.port}"}
        context = job(tmp_path, {"send": send}, tls={"ca_cert_path": str(authority.bundle)})
        result = figure("squid", f"a load through the proxy, {scheme}", lambda: send_data(context))
        assert result.resources_out == 500
    how = ("TCP_TUNNEL/200", "CONNECT") if scheme == "https" else ("TCP_MISS/200", "POST")
    wait_until(lambda: (*how, NAME) in squid.served())
