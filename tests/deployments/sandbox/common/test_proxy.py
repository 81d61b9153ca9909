# ruff: noqa: SIM117 - the outer block sets the scene, the inner one is what is tested
from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from deployments.sandbox.common.proxy import ForwardProxy
from tests.conftest import free_ports


class OriginHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str, dict[str, str], bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.seen.append((self.command, self.path, headers, body))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST  # noqa: N815 - the library's name

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class OriginServer(http.server.ThreadingHTTPServer):
    daemon_threads = True


@pytest.fixture
def origin() -> Iterator[OriginServer]:
    handler = type("Handler", (OriginHandler,), {"seen": []})
    server = OriginServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def received_requests(origin: OriginServer) -> list[tuple[str, str, dict[str, str], bytes]]:
    found: list[tuple[str, str, dict[str, str], bytes]] = origin.RequestHandlerClass.seen  # type: ignore[attr-defined]
    return found


def test_requests_are_forwarded_to_where_the_name_really_is(origin: OriginServer) -> None:
    body = b"x" * 300_000
    with ForwardProxy(hosts={"example.test": ("127.0.0.1", origin.server_port)}) as proxy:
        with httpx.Client(proxy=proxy.url, trust_env=False, timeout=60) as client:
            for _ in range(2):
                assert client.post("http://example.test/a?b=c", content=body).content == body
    assert (proxy.requests, proxy.tunnels, proxy.refused) == (2, 0, 0)
    assert proxy.targets == ["example.test:80"] * 2
    method, path, headers, received = received_requests(origin)[0]
    assert (method, path, headers["host"], received) == ("POST", "/a?b=c", "example.test", body)


def test_a_tunnel_passes_bytes_both_ways(origin: OriginServer) -> None:
    with ForwardProxy(hosts={"example.test:443": ("127.0.0.1", origin.server_port)}) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as sock:
            sock.sendall(b"CONNECT example.test:443 HTTP/1.1\r\nHost: example.test:443\r\n\r\n")
            assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
            sock.sendall(b"GET /inside HTTP/1.1\r\nHost: example.test\r\nConnection: close\r\n\r\n")
            answer = b""
            while part := sock.recv(4096):
                answer += part
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert (proxy.requests, proxy.tunnels) == (0, 1)
    assert received_requests(origin)[0][1] == "/inside"


def test_credentials_are_asked_for_and_not_passed_on(origin: OriginServer) -> None:
    hosts = {"example.test": ("127.0.0.1", origin.server_port)}
    with ForwardProxy(credentials=("user", "p:w"), hosts=hosts) as proxy:
        with httpx.Client(proxy=proxy.url, trust_env=False, timeout=60) as client:
            refused = client.get("http://example.test/")
        with httpx.Client(proxy=httpx.Proxy(proxy.url, auth=("user", "p:w")), trust_env=False, timeout=60) as client:
            admitted = client.get("http://example.test/")
    assert refused.status_code == 407
    assert refused.headers["proxy-authenticate"].startswith("Basic ")
    assert admitted.status_code == 200
    assert (proxy.refused, proxy.requests) == (1, 1)
    assert "proxy-authorization" not in received_requests(origin)[0][2]


def test_what_cannot_be_reached_is_a_bad_gateway() -> None:
    with ForwardProxy(hosts={"example.test": ("127.0.0.1", free_ports())}) as proxy:
        with httpx.Client(proxy=proxy.url, trust_env=False, timeout=60) as client:
            assert client.get("http://example.test/").status_code == 502
            with pytest.raises(httpx.ProxyError, match="502"):
                client.get("https://example.test/")


def test_what_is_no_absolute_http_url_is_a_bad_request() -> None:
    with ForwardProxy() as proxy, httpx.Client(trust_env=False, timeout=60) as client:
        assert client.get(f"{proxy.url}/path").status_code == 400


def test_a_client_that_hangs_up_disturbs_nobody(origin: OriginServer) -> None:
    with ForwardProxy(hosts={"example.test": ("127.0.0.1", origin.server_port)}) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as sock:
            sock.sendall(b"GET http://exam")
        with httpx.Client(proxy=proxy.url, trust_env=False, timeout=60) as client:
            assert client.get("http://example.test/").status_code == 200


def test_stopping_ends_open_tunnels(origin: OriginServer) -> None:
    proxy = ForwardProxy(hosts={"example.test": ("127.0.0.1", origin.server_port)}).start()
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as sock:
        sock.sendall(b"CONNECT example.test:443 HTTP/1.1\r\n\r\n")
        sock.recv(4096)
        proxy.stop()
        assert sock.recv(4096) == b""
