# ruff: noqa: SIM117 - the outer block sets the scene, the inner one is what is tested
from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from config import AuthConfig, TlsConfig
from tasks.shared.errors import InputError, NetworkError, ServiceError
from tasks.shared.http.client import ServiceClient
from tasks.shared.http.proxies import Proxies, Proxy, is_loopback, parse_proxy
from tests.peers.client import Sleeps, client
from tests.peers.proxy import ForwardProxy
from tests.peers.server import Loopback, Reply, closed_port, loopback


def host_of(port: int) -> dict[str, tuple[str, int]]:
    return dict.fromkeys(("example.test", "other.test"), ("127.0.0.1", port))


def test_plain_http_goes_through_http_proxy() -> None:
    with loopback([Reply(200, b"ok")]) as server, ForwardProxy(hosts=host_of(server.port)) as proxy:
        with client(environ={"HTTP_PROXY": proxy.url}) as http:
            assert http.send("POST", "http://example.test/a?b=c", operation="send", content=b"x").body == b"ok"
            assert http.peek("GET", "http://example.test/").status == 200
    assert (proxy.requests, proxy.tunnels) == (2, 0)
    assert proxy.targets[0] == "example.test:80"
    assert (server.seen[0].target, server.seen[0].body) == ("/a?b=c", b"x")


def test_https_goes_through_a_tunnel_of_https_proxy_and_is_verified(tmp_path: Path) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("example.test").configure_cert(context)
    with loopback([Reply(200, b"ok")], tls=context) as server, ForwardProxy(hosts=host_of(server.port)) as proxy:
        environ = {"https_proxy": proxy.url}
        with client(environ=environ, tls=TlsConfig(ca_cert_path=tmp_path / "ca.pem")) as http:
            for _ in range(2):
                assert http.send("GET", "https://example.test/", operation="read").body == b"ok"
        with client(environ=environ) as http, pytest.raises(ServiceError) as caught:
            http.send("GET", "https://example.test/", operation="read")
    assert caught.value.reference == "tls-untrusted"
    assert (proxy.requests, proxy.tunnels) == (0, 2)
    assert all("proxy-authorization" not in seen.headers for seen in server.seen)


@contextmanager
def reached_by_tls(proxy: ForwardProxy, context: ssl.SSLContext) -> Iterator[str]:
    """Yield the URL of a proxy that is itself reached by ``https``."""

    def carry(accepted: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            context.wrap_socket(accepted, server_side=True) as near,
            socket.create_connection(("127.0.0.1", proxy.port)) as far,
        ):
            while True:
                for one in [near] if near.pending() else select.select([near, far], [], [])[0]:
                    data = one.recv(1 << 16)
                    if not data:
                        return
                    (far if one is near else near).sendall(data)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threads.append(threading.Thread(target=carry, args=(listener.accept()[0],)))
                threads[-1].start()

    threads: list[threading.Thread] = []
    listener = socket.create_server(("127.0.0.1", 0))
    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in [accepting, *threads]:
            thread.join()


@contextmanager
def inside(directory: Path, **options: Any) -> Iterator[tuple[Loopback, ServiceClient]]:
    """Yield a server that is reached by TLS through a proxy that is reached by TLS."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(directory / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("example.test", "127.0.0.1").configure_cert(context)
    with (
        loopback(lambda seen: Reply(200, seen.body or b"ok"), tls=context) as server,
        ForwardProxy(hosts=host_of(server.port)) as proxy,
        reached_by_tls(proxy, context) as url,
        client(
            environ={"https_proxy": url}, tls=TlsConfig(ca_cert_path=directory / "ca.pem"), attempts=1, **options
        ) as http,
    ):
        yield server, http


@pytest.mark.slow
def test_https_goes_through_a_proxy_that_is_reached_by_https(tmp_path: Path) -> None:
    body = bytes(range(256)) * 20_000
    with inside(tmp_path) as (server, http):
        for content in (b"small", body, b"small again"):
            assert http.send("POST", "https://example.test/", operation="send", content=content).body == content
        with http.stream("POST", "https://example.test/", operation="download", content=body) as response:
            assert b"".join(response.iter_raw()) == body
    assert server.connections == 1


@pytest.mark.slow
def test_who_stands_behind_such_a_proxy_is_verified(tmp_path: Path) -> None:
    with inside(tmp_path) as (_, http), pytest.raises(ServiceError) as caught:
        http.send("GET", "https://other.test/", operation="read")
    assert caught.value.reference == "tls-hostname"


def test_the_proxys_own_credentials_are_sent_to_the_proxy_only() -> None:
    proxy = ForwardProxy(credentials=("user@site", "pass:word"))
    with loopback([Reply(200)]) as server, proxy:
        proxy.hosts |= host_of(server.port)
        environ = {"http_proxy": f"http://user%40site:pass%3Aword@127.0.0.1:{proxy.port}"}
        auth = AuthConfig(username="u", password="p")
        with client(environ=environ, auth=auth, credentials_origin="http://example.test") as http:
            http.send("GET", "http://example.test/", operation="read")
    assert proxy.refused == 0
    assert server.seen[0].authorization is not None
    assert "proxy-authorization" not in server.seen[0].headers


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("credentials", ["", "user:geheim@"])
def test_a_proxy_that_wants_other_credentials_is_terminal(scheme: str, credentials: str) -> None:
    sleeps = Sleeps()
    with ForwardProxy(credentials=("user", "right")) as proxy:
        environ = {f"{scheme}_proxy": f"http://{credentials}127.0.0.1:{proxy.port}"}
        with client(environ=environ, sleep=sleeps) as http:
            with pytest.raises(ServiceError) as caught:
                http.send("GET", f"{scheme}://example.test/", operation="read")
            with pytest.raises(ServiceError):
                http.peek("GET", f"{scheme}://example.test/")
    assert caught.value.reference == "proxy-authentication"
    assert caught.value.status == 407
    assert sleeps == []
    assert "geheim" not in caught.value.render()
    assert proxy.refused == 2


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_not_there_is_transient_and_named(scheme: str) -> None:
    port = closed_port()
    with client(environ={f"{scheme}_proxy": f"http://u:geheim@127.0.0.1:{port}"}, attempts=2) as http:
        with pytest.raises(NetworkError) as caught:
            http.send("GET", f"{scheme}://example.test/", operation="read")
    assert f"127.0.0.1:{port}" in caught.value.message
    assert "geheim" not in caught.value.render()


def test_a_service_the_proxy_does_not_reach_is_transient() -> None:
    hosts = {"example.test": ("127.0.0.1", closed_port())}
    with ForwardProxy(hosts=hosts) as proxy:
        with client(environ={"http_proxy": proxy.url, "https_proxy": proxy.url}, attempts=1) as http:
            for call in (lambda: http.send("GET", "https://example.test/", operation="x"),
                         lambda: http.peek("GET", "https://example.test/"),
                         lambda: http.peek("GET", "http://example.test/")):  # fmt: skip
                with pytest.raises(NetworkError) as caught:
                    call()
                assert caught.value.reference == "proxy-unreachable"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_loopback_is_never_proxied(host: str) -> None:
    with loopback([Reply(200, b"direct")]) as server, ForwardProxy() as proxy:
        with client(environ={"HTTP_PROXY": proxy.url, "NO_PROXY": ""}) as http:
            assert http.send("GET", f"http://{host}:{server.port}/", operation="read").body == b"direct"
    assert (proxy.requests, proxy.refused) == (0, 0)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.8.7", "::1", "localhost", "LOCALHOST.", "a.localhost", "::ffff:127.0.0.1"]
)
def test_what_loopback_is(host: str) -> None:
    assert is_loopback(host)
    assert not is_loopback("x" + host + ".test")


UPPER = {"HTTP_PROXY": "http://upper.test"}


@pytest.mark.parametrize(
    ("environ", "scheme", "proxy"),
    [
        ({"http_proxy": "http://proxy.test:3128"}, "http", Proxy("http", "proxy.test", 3128)),
        ({"HTTPS_PROXY": "proxy.test:8080"}, "https", Proxy("http", "proxy.test", 8080)),
        ({"HTTPS_PROXY": "proxy.test:8080"}, "http", None),  # each scheme has its own
        (UPPER | {"http_proxy": "http://lower.test"}, "http", Proxy("http", "lower.test", 80)),  # lower case wins
        (UPPER | {"http_proxy": ""}, "http", None),
        (UPPER | {"REQUEST_METHOD": "GET"}, "http", None),  # the header "Proxy" of a web request
    ],
)
@pytest.mark.parametrize("of_the_process", [True, False])
def test_the_environment_names_the_proxy_of_a_scheme(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], scheme: str, proxy: Proxy | None, *, of_the_process: bool
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items() if of_the_process else ():
        monkeypatch.setenv(name, value)
    assert Proxies(None if of_the_process else environ).select(scheme, "example.test", 80) == proxy


@pytest.mark.parametrize(
    ("entry", "host", "direct"),
    [
        ("*", "example.test", True),
        ("example.test", "example.test", True),
        ("example.test", "EXAMPLE.test", True),
        ("example.test", "fhir.example.test", True),
        ("example.test", "notexample.test", False),
        (".example.test", "fhir.example.test", True),
        ("*.example.test", "fhir.example.test", True),
        ("example.test:8080", "example.test", True),
        ("example.test:9090", "example.test", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3:8080", "10.1.2.3", True),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.0.0.0/99", "10.1.2.3", False),
        ("fd00::1", "fd00::1", True),
        ("[fd00::1]:8080", "fd00::1", True),
        ("fd00::/8", "fd00::1", True),
        ("a.test, example.test ,b.test", "example.test", True),
        (",, ,", "example.test", False),
    ],
)  # fmt: skip
def test_no_proxy_names_hosts_domains_addresses_networks_and_ports(entry: str, host: str, direct: bool) -> None:
    for variable in ("NO_PROXY", "no_proxy"):
        proxies = Proxies({"http_proxy": "http://proxy.test", variable: entry})
        assert (proxies.select("http", host, 8080) is None) is direct


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("socks5://geheim@proxy.test", "not supported"),
        ("http://", "not a proxy URL"),
        ("http://geheim@proxy.test:port", "not a proxy URL"),
        ("http://[geheim", "not a proxy URL"),
    ],
)
def test_a_proxy_variable_that_cannot_be_used_is_named_without_its_text(value: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        client(environ={"HTTPS_PROXY": value})
    assert "HTTPS_PROXY" in caught.value.render()
    assert "geheim" not in caught.value.render()


@given(st.text(max_size=60))
def test_any_proxy_variable_is_a_proxy_or_a_clear_error(value: str) -> None:
    try:
        host, reference = parse_proxy(value, "HTTP_PROXY").host, ""
    except InputError as error:
        host, reference = "", error.reference
    assert host or reference == "proxy-invalid"


def test_the_password_of_a_proxy_does_not_show() -> None:
    proxy = parse_proxy("http://user:geheim@proxy.test:3128", "HTTP_PROXY")
    assert proxy.credentials == ("user", "geheim")
    assert "geheim" not in repr(proxy) + proxy.url
