"""Output of ``-v`` for a request (``4-product.md`` §2): method, address, status, sizes, time; no payload, no person."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from config import RetryConfig, TlsConfig
from tasks.shared.errors import NetworkError
from tasks.shared.http import wire_log
from tasks.shared.http.client import ServiceClient


@pytest.fixture
def logged() -> Iterator[list[str]]:
    lines: list[str] = []
    wire_log.listen(lines.append)
    yield lines
    wire_log.listen(None)


def client(answer: object) -> ServiceClient:
    def handle(_: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, httpx.Response)
        return answer

    once = RetryConfig(max_attempts=1)
    return ServiceClient("send", tls=TlsConfig(), retry=once, transport=httpx.MockTransport(handle))


def as_shown(line: str) -> str:
    return re.sub(r"\d+ ms$", "… ms", line)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:secret@fhir:8080/fhir/metadata", "http://fhir:8080/fhir/metadata"),
        ("http://fhir/fhir/Patient/canary-1", "http://fhir/fhir/Patient/…"),
        ("http://fhir/fhir/Patient/canary-1/$everything", "http://fhir/fhir/Patient/…/$everything"),
        ("http://fhir/fhir/Patient/canary-1/_history/2", "http://fhir/fhir/Patient/…/_history/2"),
        ("http://fhir/patients/4711", "http://fhir/patients/…"),
        ("http://fhir/fhir/$extract-data", "http://fhir/fhir/$extract-data"),
        ("http://fhir/fhir/Task?identifier=urn:x|4711&_count=1", "http://fhir/fhir/Task?identifier=…&_count=…"),
        ("https://store/bucket/job/core.ndjson?X-Amz-Signature=0a1b", "https://store/bucket/job/core.ndjson?X-Amz-Signature=…"),
        ("https://store/file.ndjson?0a1b2c", "https://store/file.ndjson?…"),
        ("https://store/file.ndjson?4711=x#y", "https://store/file.ndjson?…=…"),
        ("http://fhir/__status/5f3c", "http://fhir/__status/5f3c"),
    ],
)  # fmt: skip
def test_an_address_shows_neither_a_person_nor_a_permission(url: str, shown: str) -> None:
    assert wire_log.shown(url) == shown


def test_each_request_is_told_with_its_status_and_the_sizes_of_its_bodies(logged: list[str]) -> None:
    with client(httpx.Response(200, content=b"x" * 1500)) as service:
        service.send("POST", "http://fhir/fhir/Patient/canary-1", operation="send", content=b"y" * 2000)
        service.peek("GET", "http://fhir/metadata")
    assert [as_shown(line) for line in logged] == [
        "POST http://fhir/fhir/Patient/…: 200, 2.0 kB sent, 1.5 kB back, … ms",
        "GET http://fhir/metadata: 200, 0 B, … ms",
    ]


def test_a_request_that_nobody_answers_is_told_with_the_reference_of_its_error(logged: list[str]) -> None:
    with client(httpx.ConnectError("canary")) as service, pytest.raises(NetworkError):
        service.send("GET", "http://fhir/metadata", operation="reach")
    assert [as_shown(line) for line in logged] == ["GET http://fhir/metadata: connect-failed, … ms"]


def test_a_download_is_told_when_its_body_is_read_with_what_came_of_it(logged: list[str]) -> None:
    service = client(httpx.Response(200, content=b"x" * 1500))
    with service.stream("GET", "http://fhir/file?token=canary", operation="download") as response:
        assert logged == []
        assert len(b"".join(response.iter_raw())) == 1500
    assert [as_shown(line) for line in logged] == ["GET http://fhir/file?token=…: 200, 1.5 kB, … ms"]
