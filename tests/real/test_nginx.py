"""Services behind a reverse proxy, and files on a web server: nginx (document 3 §1, §7, §8)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import zstandard

from config import TlsConfig
from deployments.sandbox.common.serve import Served, serve_in_thread
from deployments.sandbox.fhir.app import fhir_service
from tasks.http_import import importer
from tasks.send.step import run as send_data
from tasks.shared.errors import ServiceBusyError, ServiceError, SluiceError, TerminalError
from tasks.shared.files.data_directory import data_files
from tests.conftest import free_ports, wait_until
from tests.peers.client import Sleeps, client
from tests.peers.lines import read_lines
from tests.real.conftest import Measure
from tests.real.job import job, observation, write
from tests.real.nginx_server import nginx
from tests.real.programs import HOST

pytestmark = pytest.mark.real("nginx")


@pytest.fixture
def fhir() -> Iterator[Served]:
    with serve_in_thread(fhir_service()) as served:
        yield served


def count(fhir: Served, kind: str) -> int:
    """Count the resources of a type on the server behind nginx."""
    with client() as http:
        answer = http.send("GET", f"{fhir.url}/fhir/{kind}?_summary=count", operation="read")
    total: int = json.loads(answer.body)["total"]
    return total


# Limits of a reverse proxy


def test_413_of_a_body_limit_halves_transactions_until_everything_is_in(
    fhir: Served, tmp_path: Path, figure: Measure
) -> None:
    write(tmp_path, "a.ndjson", *(observation(f"o{number}", note=[{"text": "x" * 1000}]) for number in range(400)))
    with nginx(f"client_max_body_size 64k; location / {{ proxy_pass {fhir.url}; }}") as front:
        send = {"send_as": "direct_resource_load", "url": front.url, "batch_size": 400}
        context = job(tmp_path, {"send": send})
        result = figure("nginx", "a load behind a body limit of 64 kB", lambda: send_data(context))
        assert result.resources_out == 400
        wait_until(lambda: 413 in front.statuses())
        # A limit that is known is kept to: three halvings, and the transactions that were under way meanwhile.
        assert front.statuses().count(413) <= 8
    assert count(fhir, "Observation") == 400


def test_413_for_a_body_that_is_still_being_sent_is_seen_as_413(tmp_path: Path) -> None:
    # nginx answers after the headers and closes; the client is in the middle of writing 4 MiB.
    with nginx("client_max_body_size 64k; location / { return 200; }") as front, client() as http:
        for _ in range(5):
            with pytest.raises(ServiceError) as caught:
                http.send("POST", f"{front.url}/fhir", operation="send", content=b"x" * (4 << 20))
            assert caught.value.status == 413


def test_413_on_a_single_resource_is_terminal_and_names_file_line_and_type(fhir: Served, tmp_path: Path) -> None:
    large = observation("large-canary", note=[{"text": "x" * 100_000}])
    write(tmp_path, "a.ndjson", observation("o1"), large, observation("o2"))
    with nginx(f"client_max_body_size 64k; location / {{ proxy_pass {fhir.url}; }}") as front:
        send = {"send_as": "direct_resource_load", "url": front.url}
        with pytest.raises(TerminalError) as caught:
            send_data(job(tmp_path, {"send": send}))
    assert caught.value.reference == "send-refused"
    assert "a.ndjson:2 Observation" in caught.value.render()
    assert "canary" not in caught.value.render()
    assert count(fhir, "Observation") == 2


@pytest.mark.parametrize("status", [429, 503])
def test_a_rate_limit_is_waited_for(fhir: Served, tmp_path: Path, status: int) -> None:
    write(tmp_path, "a.ndjson", *(observation(f"o{number}") for number in range(20)))
    zone = f"limit_req_zone $binary_remote_addr zone=all:1m rate=2r/s; limit_req_status {status};"
    with nginx(f"limit_req zone=all; location / {{ proxy_pass {fhir.url}; }}", top=zone) as front:
        # Two requests at once, one in half a second: one of them is refused, and has that time many times over.
        send = {"send_as": "direct_resource_load", "url": front.url, "batch_size": 10, "max_concurrent_requests": 2}
        retry = {"max_attempts": 10, "initial_backoff_ms": 100, "max_backoff_ms": 500}
        assert send_data(job(tmp_path, {"send": send}, retry=retry)).resources_out == 20
        wait_until(lambda: status in front.statuses())
    assert count(fhir, "Observation") == 20


def test_a_service_that_is_down_behind_the_proxy_is_busy_and_tried_again() -> None:
    sleeps = Sleeps()
    with nginx(f"location / {{ proxy_pass http://{HOST}:1; }}") as front, client(sleep=sleeps, attempts=3) as http:
        with pytest.raises(ServiceBusyError) as caught:
            http.send("POST", f"{front.url}/fhir", operation="send", content=b"{}")
        front.has_answered(502, 502, 502)
    assert caught.value.status == 502
    assert sleeps == [1.0, 2.0]


def test_a_redirect_to_a_login_page_is_no_success_of_a_post() -> None:
    with nginx("location / { return 302 /login; } location /login { return 200 welcome; }") as front, client() as http:
        with pytest.raises(ServiceError) as caught:
            http.send("POST", f"{front.url}/fhir", operation="send", content=b"{}")
        front.has_answered(302)
    assert caught.value.reference == "redirect-refused"


# TLS


def test_a_server_certificate_in_the_bundle_is_trusted_without_its_authority() -> None:
    with nginx("location / { return 200; }", tls=True) as front:
        with client(tls=TlsConfig(ca_cert_path=front.home / "chain.pem")) as http:
            assert http.send("GET", front.url, operation="read").status == 200
        with client() as http, pytest.raises(ServiceError) as caught:
            http.send("GET", front.url, operation="read")
    assert caught.value.reference == "tls-untrusted"


def test_a_client_that_speaks_plain_http_to_a_tls_port_gets_a_terminal_error() -> None:
    with (
        nginx("location / { return 200; }", tls=True) as front,
        client() as http,
        pytest.raises(ServiceError) as caught,
    ):
        http.send("GET", front.url.replace("https", "http"), operation="read")
    assert caught.value.status == 400


def test_a_client_that_speaks_tls_to_a_plain_port_is_told_so() -> None:
    with nginx("location / { return 200; }") as front, client() as http, pytest.raises(SluiceError) as caught:
        http.send("GET", front.url.replace("http", "https"), operation="read")
    assert caught.value.reference.startswith("tls-")


# Files on a web server


def resources(number: int) -> bytes:
    return b"".join(
        json.dumps(observation(f"o{index}", note=[{"text": "x" * 200}])).encode() + b"\n" for index in range(number)
    )


def imported(tmp_path: Path) -> dict[str, bytes]:
    return {path.name: b"\n".join(read_lines(path)) + b"\n" for path in data_files(tmp_path / "import")}


def arrived(directory: Path) -> int:
    """Return the bytes in the files of a directory, which may get other names meanwhile."""
    total = 0
    for path in directory.glob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def test_files_are_imported_from_a_web_server_byte_for_byte(tmp_path: Path) -> None:
    data = resources(2000)
    with nginx("root {home}/www;") as front:
        www = front.home / "www"
        www.mkdir()
        (www / "Observation.ndjson").write_bytes(data)
        (www / "packed.ndjson.zst").write_bytes(zstandard.compress(data))
        (www / "plain name").write_bytes(data)
        urls = [f"{front.url}/{name}" for name in ("Observation.ndjson", "packed.ndjson.zst", "plain%20name?x=1")]
        importer.run(job(tmp_path, {"http_import": {"urls": urls}}, name="http_import"))
    assert list(imported(tmp_path).values()) == [data] * 3


def test_compression_of_the_web_server_is_not_asked_for_so_lengths_can_be_compared(tmp_path: Path) -> None:
    data = resources(500)
    with nginx("root {home}/www; gzip on; gzip_static on; gzip_types *;") as front:
        www = front.home / "www"
        www.mkdir()
        (www / "a.ndjson").write_bytes(data)
        (www / "a.ndjson.gz").write_bytes(gzip.compress(data))
        importer.run(job(tmp_path, {"http_import": {"urls": [f"{front.url}/a.ndjson"]}}, name="http_import"))
    assert imported(tmp_path) == {"a.ndjson.zst": data}


def test_a_download_that_breaks_goes_on_where_it_stopped(tmp_path: Path) -> None:
    data = resources(4000)
    served = tmp_path / "www" / "a.ndjson"
    served.parent.mkdir()
    served.write_bytes(data)
    context = job(
        tmp_path,
        {"http_import": {"urls": [f"http://{HOST}:{(port := free_ports())}/a.ndjson"]}},
        name="http_import",
        compression={"enabled": False},
        retry={"max_attempts": 10, "initial_backoff_ms": 200, "max_backoff_ms": 1000},
    )
    with ThreadPoolExecutor(1) as pool:
        # The rest would take a minute: it breaks before the end, however late this is seen.
        with nginx(f"root {served.parent}; limit_rate_after 200k; limit_rate 20k;", port=port):
            done = pool.submit(importer.run, context)
            wait_until(lambda: arrived(tmp_path / "import") > 100_000)
        with nginx(f"root {served.parent};", port=port) as front:
            done.result(60)
            front.has_answered(206)
    assert imported(tmp_path) == {"a.ndjson": data}


def test_a_login_page_answered_with_200_is_an_error_found_on_the_first_line(tmp_path: Path) -> None:
    with nginx('location / { default_type text/html; return 200 "<html>log in, canary</html>"; }') as front:
        urls = {"urls": [f"{front.url}/a.ndjson"]}
        with pytest.raises(TerminalError) as caught:
            importer.run(job(tmp_path, {"http_import": urls}, name="http_import"))
    assert "canary" not in caught.value.render()
    assert imported(tmp_path) == {}
