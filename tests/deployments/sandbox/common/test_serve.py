"""Servers on loopback for tests and for the host."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import httpx
import pytest
import trustme
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from deployments.sandbox.common.serve import Certificate, SandboxStartError, serve_in_thread
from deployments.sandbox.fhir.app import fhir_service
from tests.conftest import free_ports


def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"hello {request.url.path}")


def test_any_asgi_application_is_served_while_the_block_runs() -> None:
    # A port that nobody else uses when it is free again.
    with serve_in_thread(Starlette(routes=[Route("/x", hello)]), port=free_ports()) as served:
        assert httpx.get(served.url + "/x", trust_env=False, timeout=60).text == "hello /x"
    with pytest.raises(httpx.ConnectError):
        httpx.get(served.url + "/x", trust_env=False, timeout=60)


def test_it_listens_on_loopback_only() -> None:
    with serve_in_thread(fhir_service()) as served:
        assert served.url == f"http://127.0.0.1:{served.port}"
        own = socket.gethostbyname(socket.gethostname())
        if not own.startswith("127."):
            with pytest.raises(OSError), socket.create_connection((own, served.port), timeout=2):
                pass


def test_a_port_that_is_taken_is_a_clear_error() -> None:
    with (
        serve_in_thread(fhir_service()) as served,
        pytest.raises(SandboxStartError, match=f"port {served.port}"),
        serve_in_thread(fhir_service(), port=served.port),
    ):
        pass


def test_tls_is_served_with_the_given_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    chain, key, ca = tmp_path / "chain.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    leaf.private_key_pem.write_to_path(str(key))
    for blob in leaf.cert_chain_pems:
        blob.write_to_path(str(chain), append=True)
    authority.cert_pem.write_to_path(str(ca))
    context = ssl.create_default_context(cafile=str(ca))
    with (
        serve_in_thread(fhir_service(), certificate=Certificate(chain, key)) as served,
        httpx.Client(verify=context, trust_env=False, timeout=60) as client,
    ):
        assert served.url.startswith("https://")
        assert client.get(served.url + "/fhir/metadata").status_code == 200
        client.put(served.url + "/_sandbox/faults", json=[{"action": "reset"}, {"action": "cut"}])
        for _ in range(2):
            with pytest.raises(httpx.TransportError):
                client.get(served.url + "/fhir/metadata")
