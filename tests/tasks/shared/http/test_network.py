"""TLS and proxies of every call, and the variables that name them."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import trustme

from config import TlsConfig
from tasks.extractor.poll_transport import PollTransport
from tasks.shared.errors import InputError, NetworkError, ServiceError, SluiceError
from tasks.shared.http.client import Call
from tasks.shared.http.network import Proxies, Transport, ssl_context
from tests.peers.client import client
from tests.peers.proxy import ForwardProxy
from tests.peers.server import Loopback, Reply, closed_port, loopback


@pytest.mark.parametrize(
    ("environ", "url", "proxy"),
    [
        ({"HTTP_PROXY": "http://p:1"}, "http://host/", "http://p:1"),
        ({"HTTP_PROXY": "p:1"}, "http://host/", "http://p:1"),
        ({"HTTP_PROXY": "http://p:1"}, "https://host/", None),
        ({"https_proxy": "http://low:1", "HTTPS_PROXY": "http://up:1"}, "https://host/", "http://low:1"),
        ({"https_proxy": "", "HTTPS_PROXY": "http://up:1"}, "https://host/", None),
        ({"ALL_PROXY": "http://p:1"}, "https://host/", "http://p:1"),
        ({"ALL_PROXY": "http://all:1", "HTTP_PROXY": "http://p:1"}, "http://host/", "http://p:1"),
        *(({"HTTP_PROXY": "http://p:1"}, f"http://{host}/", None)
          for host in ("localhost", "127.0.0.1", "127.8.8.8", "[::1]", "[::ffff:127.0.0.1]", "sub.localhost")),
        *(({"HTTP_PROXY": "http://p:1", "NO_PROXY": rule}, f"http://{host}/", None) for rule, host in (
            ("*", "host"), ("host", "host"), ("example.org", "a.example.org"), (".example.org", "a.example.org"),
            ("10.0.0.0/8", "10.1.2.3"), ("fd00::/8", "[fd00::1]"), ("host:80", "host"), ("[fd00::1]:80", "[fd00::1]"),
            ("localhost,fd00::/8,host", "host"), ("HOST", "host"),
        )),
        *(({"HTTP_PROXY": "http://p:1", "NO_PROXY": rule}, f"http://{host}/", "http://p:1") for rule, host in (
            ("example.org", "badexample.org"), ("host:81", "host"), ("10.0.0.0/8", "11.1.2.3"), ("", "host"),
        )),
    ],
)  # fmt: skip
def test_the_environment_names_the_proxy_of_a_host(environ: dict[str, str], url: str, proxy: str | None) -> None:
    assert Proxies(environ).select(httpx.URL(url)) == proxy


@pytest.mark.parametrize("text", ["socks5://127.0.0.1:1", "http://", "http://host:port", "http://[::1", "https://p:1"])
@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
def test_a_proxy_that_cannot_work_is_an_error_that_names_the_variable(name: str, text: str) -> None:
    with pytest.raises(InputError) as caught:
        Proxies({name: text.replace("//", "//user:secret@")})
    assert (caught.value.reference, caught.value.context) == ("proxy-invalid", name)
    assert "secret" not in caught.value.render()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure(authority: trustme.CA) -> Iterator[Loopback]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with loopback([Reply(200, b"secure")], tls=context) as server:
        yield server


Made = Callable[[ssl.SSLContext, Proxies], httpx.BaseTransport]
every_transport = pytest.mark.parametrize("transport", [Transport, PollTransport])


def get(server: Loopback, tls: TlsConfig, **more: object) -> bytes:
    with client(tls=tls, attempts=1, **more) as http:
        return http.send(Call("GET", server.url, "call")).body


def test_a_download_is_not_redirected_out_of_tls(authority: trustme.CA, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = TlsConfig(ca_cert_path=tmp_path / "ca.pem")
    with loopback([Reply(200, b"plain")]) as plain, client(tls=tls) as http:
        there = Reply(302, headers={"Location": plain.url})
        with (
            loopback([there], tls=context) as server,
            pytest.raises(ServiceError) as caught,
            http.stream(Call("GET", server.url, "get"), follow=True),
        ):
            pass
    assert (caught.value.reference, plain.seen) == ("redirect-refused", [])


@every_transport
def test_an_additional_authority_or_a_server_certificate_is_trusted(
    secure: Loopback, authority: trustme.CA, tmp_path: Path, transport: Made
) -> None:
    with pytest.raises(ServiceError) as caught:
        get(secure, TlsConfig(), transport=transport)
    assert caught.value.reference == "tls-untrusted"
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(b"# our CA\n" + authority.cert_pem.bytes())
    assert get(secure, TlsConfig(ca_cert_path=bundle), transport=transport) == b"secure"
    leaf = tmp_path / "leaf.pem"
    leaf.write_text(ssl.get_server_certificate(("127.0.0.1", secure.port)))
    assert get(secure, TlsConfig(ca_cert_path=leaf), transport=transport) == b"secure"
    assert get(secure, TlsConfig(insecure_skip_verify=True), transport=transport) == b"secure"


def answer_plainly(listener: socket.socket) -> None:
    with listener.accept()[0] as peer:
        peer.recv(1000)
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_a_certificate_for_another_host_and_a_server_without_tls_are_told_apart(
    authority: trustme.CA, tmp_path: Path
) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(authority.cert_pem.bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("other.example").configure_cert(context)
    with loopback([Reply()], tls=context) as server, pytest.raises(ServiceError) as caught:
        get(server, TlsConfig(ca_cert_path=bundle))
    assert caught.value.reference == "tls-untrusted"
    assert "mismatch" in caught.value.message
    with socket.create_server(("127.0.0.1", 0)) as plain:
        threading.Thread(target=answer_plainly, args=[plain], daemon=True).start()
        with client(attempts=1) as http, pytest.raises(NetworkError) as broken:
            http.send(Call("GET", f"https://127.0.0.1:{plain.getsockname()[1]}/", "call"))
    assert broken.value.reference == "tls-handshake"


@pytest.mark.parametrize("content", [None, b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nMII\n-----END"])
def test_a_bundle_that_cannot_be_used_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    bundle = tmp_path / "ca.pem"
    if content is not None:
        bundle.write_bytes(content)
    with pytest.raises(InputError) as caught:
        ssl_context(TlsConfig(ca_cert_path=bundle))
    assert (caught.value.reference, caught.value.exit_code) == ("tls-ca-bundle", 2)


def test_ssl_cert_file_must_name_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(InputError) as caught:
        ssl_context(TlsConfig())
    assert "SSL_CERT_FILE" in caught.value.render()


@every_transport
def test_a_proxy_carries_http_and_https_with_its_own_login(secure: Loopback, transport: Made) -> None:
    with loopback([Reply(200, b"plain")]) as plain:
        hosts = {"plain.test": ("127.0.0.1", plain.port), "secure.test": ("127.0.0.1", secure.port)}
        with ForwardProxy(credentials=("user", "secret"), hosts=hosts) as proxy:
            named = proxy.url.replace("//", "//user:secret@")
            through = {"HTTP_PROXY": named, "HTTPS_PROXY": named}
            tls = TlsConfig(insecure_skip_verify=True)
            with client(tls=tls, environ=through, attempts=1, transport=transport) as http:
                assert http.send(Call("GET", "http://plain.test/", "call")).body == b"plain"
                assert http.send(Call("GET", "https://secure.test/", "call")).body == b"secure"
            assert (proxy.requests, proxy.tunnels) == (1, 1)
    assert "proxy-authorization" not in plain.seen[0].headers | secure.seen[0].headers


@every_transport
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_refuses_or_is_away_is_named(scheme: str, transport: Made) -> None:
    with ForwardProxy(credentials=("user", "secret")) as proxy:
        cases: dict[str, type[SluiceError]] = {
            proxy.url: ServiceError,
            f"http://127.0.0.1:{closed_port()}": NetworkError,
        }
        for named, kind in cases.items():
            through = {f"{scheme.upper()}_PROXY": named}
            with client(environ=through, attempts=1, transport=transport) as http:
                with pytest.raises(kind, match="proxy"):
                    http.send(Call("GET", f"{scheme}://service.test/", "call"))
                with pytest.raises(kind, match="proxy"):
                    http.peek("GET", f"{scheme}://service.test/")


def test_a_dead_host_is_noticed_by_keep_alive() -> None:
    transport = Transport(ssl_context(TlsConfig()), Proxies({}))
    with loopback([Reply()]) as server:
        response = transport.handle_request(httpx.Request("GET", server.url))
        connection = response.extensions["network_stream"].get_extra_info("socket")
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        response.close()
        transport.close()
