"""``POST /fhir/$extract-data`` (document 2; document 3 §2, "kick-off")."""

from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest

from deployments.sandbox.common.gate import RequiredCredentials
from tests.deployments.sandbox.extraction.conftest import ExtractionServerClient, Start, crtdl, parameters

URL = "/fhir/$extract-data"
CRTDL = base64.b64encode(json.dumps(crtdl()).encode()).decode()


@pytest.fixture
def client(start: Start, hospital: Path) -> ExtractionServerClient:
    return start(hospital)


def test_it_is_answered_202_with_an_empty_body_and_the_absolute_status_url(client: ExtractionServerClient) -> None:
    answer = client.post(URL, json=parameters(crtdl()))
    assert (answer.status_code, answer.content) == (202, b"")
    location = answer.headers["content-location"]
    base, _, job = location.rpartition("/")
    assert base == f"{client.base_url}/fhir/__status".replace("//fhir", "/fhir")
    assert str(uuid.UUID(job)) == job
    assert client.get(location).status_code in (200, 202)


def test_the_status_url_names_the_host_that_the_client_used(client: ExtractionServerClient) -> None:
    answer = client.post(URL, json=parameters(crtdl()), headers={"host": "extraction.example:8080"})
    assert answer.headers["content-location"].startswith("http://extraction.example:8080/fhir/__status/")


GOOD = {"name": "crtdl", "valueBase64Binary": CRTDL}


def body(*entries: Any) -> bytes:
    return json.dumps({"resourceType": "Parameters", "parameter": list(entries)}).encode()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "the body is empty"),
        (b"  \n", "the body is empty"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "not a Parameters"),
        (b'{"resourceType":"Bundle"}', "not a Parameters"),
        (b'{"resourceType":"Parameters","parameter":{}}', "parameter is not a list"),
        (b'{"resourceType":"Parameters"}', "exactly one crtdl parameter is required, 0 found"),
        (body(), "exactly one crtdl parameter is required, 0 found"),
        (body(GOOD, GOOD), "exactly one crtdl parameter is required, 2 found"),
        (body({"name": "crtdl"}), "no valueBase64Binary"),
        (body({"name": "crtdl", "valueString": CRTDL}), "no valueBase64Binary"),
        (body({"name": "crtdl", "valueBase64Binary": "no base64!"}), "not Base64"),
        (body({"name": "crtdl", "valueBase64Binary": "abc"}), "not Base64"),
        (body({"name": "crtdl", "valueBase64Binary": base64.b64encode(b"{").decode()}), "not a JSON object"),
        (body({"name": "crtdl", "valueBase64Binary": base64.b64encode(b"{}").decode()}), "cohortDefinition"),
        (body(GOOD, {"name": "since", "valueDate": "2025-01-01"}), "the parameter since is unknown"),
        (body(GOOD, "x"), "is unknown"),
        (body(GOOD, {"name": "patient"}), "patient parameter needs a valueString"),
        (body(GOOD, {"name": "patient", "valueString": "Patient/1"}), "patient parameter needs a valueString"),
        (body(GOOD, {"name": "patient", "valueString": ""}), "patient parameter needs a valueString"),
    ],
)
def test_what_cannot_be_read_is_400_with_a_fatal_invalid_issue(
    client: ExtractionServerClient, content: bytes, text: str
) -> None:
    answer = client.post(URL, content=content)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/fhir+json"
    outcome = answer.json()
    assert outcome["resourceType"] == "OperationOutcome"
    assert {(issue["severity"], issue["code"]) for issue in outcome["issue"]} == {("fatal", "invalid")}
    assert any(text in issue["diagnostics"] for issue in outcome["issue"])
    assert client.get("/fhir/Task").json()["total"] == 0


@pytest.mark.slow
def test_a_body_of_2_mib_is_taken_and_a_larger_one_is_413(client: ExtractionServerClient) -> None:
    content = json.dumps(parameters(crtdl())).encode()
    limit = 2 * 1024 * 1024
    assert client.post(URL, content=content + b" " * (limit - len(content))).status_code == 202
    answer = client.post(URL, content=content + b" " * (limit + 1 - len(content)))
    assert answer.status_code == 413
    assert answer.json()["resourceType"] == "OperationOutcome"

    def pieces() -> Any:
        yield from [b" " * 100_000] * 22

    assert client.post(URL, content=pieces()).status_code == 413  # without a Content-Length
    large = client.post(URL, content=b" " * 30_000_000)  # sent to its end, so that the answer is read
    assert large.status_code == 413
    assert client.post("/fhir/$evaluate-cohort", content=b" " * (limit + 1)).status_code == 413


def test_the_gate_asks_for_credentials(start: Start, hospital: Path) -> None:
    client = start(hospital, RequiredCredentials(username="u", password="p"))
    assert client.post(URL, json=parameters(crtdl())).status_code == 401
    client.auth = httpx.BasicAuth("u", "p")
    result = client.extract(crtdl())
    assert result.manifest["requiresAccessToken"] is True
    url = result.manifest["output"][0]["url"]
    assert httpx.get(url, trust_env=False, timeout=60).status_code == 401
