"""URLs of an extraction (document 1, procedure 2, 3, 6, 7; document 3 §2)."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.extractor.urls import is_result_url, job_id_of, resolve, same_host, service_url
from tasks.shared.errors import ServiceError

BASE = "https://torch.example:8443"
PREFIXED = "https://proxy.example/torch/v1"


@pytest.mark.parametrize(
    ("url", "base", "absolute"),
    [
        # absolute: kept
        ("https://files.example/a//b.ndjson?x=1", BASE, "https://files.example/a//b.ndjson?x=1"),
        ("HTTP://files.example/a", BASE, "HTTP://files.example/a"),
        # path-relative: against base_url
        ("/fhir/__status/1", BASE, f"{BASE}/fhir/__status/1"),
        ("fhir/result/core.ndjson", BASE, f"{BASE}/fhir/result/core.ndjson"),
        ("core.ndjson", BASE, f"{BASE}/core.ndjson"),
        ("output/job/core.ndjson", BASE + "/", f"{BASE}/output/job/core.ndjson"),
        ("//fhir/__status/1", BASE, f"{BASE}/fhir/__status/1"),
        # a path prefix of base_url: kept, and not repeated
        ("/fhir/__status/1", PREFIXED, f"{PREFIXED}/fhir/__status/1"),
        ("/torch/v1/fhir/__status/1", PREFIXED, f"{PREFIXED}/fhir/__status/1"),
        ("//torch/v1//fhir/x", PREFIXED, f"{PREFIXED}/fhir/x"),
        ("/torch/v10/x", PREFIXED, f"{PREFIXED}/torch/v10/x"),
        ("fhir/x", PREFIXED, f"{PREFIXED}/fhir/x"),
        # scheme-less, host-prefixed: the scheme of base_url
        ("//files.example/a.ndjson", BASE, "https://files.example/a.ndjson"),
        ("files.example/a.ndjson", BASE, "https://files.example/a.ndjson"),
        ("files.example/a.ndjson", "http://torch.example", "http://files.example/a.ndjson"),
        ("nginx:8080/a.ndjson", BASE, "https://nginx:8080/a.ndjson"),
        ("localhost:8080/a.ndjson", BASE, "https://localhost:8080/a.ndjson"),
        ("localhost/a.ndjson", BASE, "https://localhost/a.ndjson"),
        ("torch.example:8443/a.ndjson", BASE, "https://torch.example:8443/a.ndjson"),
        ("[::1]:8080/a.ndjson", BASE, "https://[::1]:8080/a.ndjson"),
        ("10.0.0.1/a.ndjson", BASE, "https://10.0.0.1/a.ndjson"),
        ("torch/a.ndjson", "http://torch:8080", "http://torch/a.ndjson"),
        (" /fhir/x ", BASE, f"{BASE}/fhir/x"),
    ],
)
def test_a_url_of_the_server_is_made_absolute(url: str, base: str, absolute: str) -> None:
    assert resolve(url, base) == absolute


@pytest.mark.parametrize(
    "url", ["", "  ", "ftp://files.example/x", "file:///etc/passwd", "http://", "https://h:99999/x", "a b"]
)
def test_what_is_no_http_url_is_an_error(url: str) -> None:
    with pytest.raises(ServiceError) as caught:
        resolve(url, BASE)
    assert caught.value.reference == "result-url"


@given(st.text(max_size=30))
def test_whatever_the_server_writes_is_absolute_or_an_error(url: str) -> None:
    with contextlib.suppress(ServiceError):
        assert resolve(url, BASE).lower().startswith(("http://", "https://"))


@pytest.mark.parametrize(
    ("url", "known"),
    [
        ("https://h/fhir/__status/11111111-1111-4111-8111-111111111111", True),
        ("https://h/torch/fhir/__status/11111111-1111-4111-8111-111111111111", True),
        ("https://h/fhir/extraction/x/y.json", True),
        ("https://h/fhir/result/x", True),
        ("https://h/fhir/__status/not-a-uuid", False),
        ("https://h/fhir/result/", False),
        ("https://h/fhir/Patient", False),
        ("https://h/data/Patient.ndjson", False),
    ],
)
def test_urls_of_complete_results_are_recognised(url: str, known: bool) -> None:
    assert is_result_url(url) is known


def test_the_job_id_is_the_last_path_segment_of_the_status_url() -> None:
    assert job_id_of("https://h/fhir/__status/abc-1?x=/y") == "abc-1"
    assert job_id_of("https://h/fhir/__status/abc-1/") == "abc-1"
    assert job_id_of("https://h") == ""


@pytest.mark.parametrize(
    ("url", "same"),
    [("http://TORCH.example/x", True), ("https://torch.example:1/x", True), ("https://files.torch.example/x", False)],
)
def test_the_host_name_decides_whether_a_file_gets_the_credentials(url: str, same: bool) -> None:
    assert same_host(url, BASE) is same


def test_segments_under_fhir_are_escaped() -> None:
    assert service_url("https://h/p/", "Task", "a/../b", "$pause") == "https://h/p/fhir/Task/a%2F..%2Fb/$pause"
