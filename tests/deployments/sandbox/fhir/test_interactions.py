"""Single resources: read, update, create, delete, versions, limits, credentials, metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from deployments.sandbox.common.gate import RequiredCredentials
from tests.deployments.sandbox.conftest import JSON, SandboxClient, Start

PATIENT = '{"resourceType":"Patient","id":"p1"}'


def is_outcome(response: httpx.Response) -> bool:
    return bool(response.json()["resourceType"] == "OperationOutcome")


def test_put_creates_with_201_and_updates_with_200(fhir: SandboxClient) -> None:
    created = fhir.store("Patient/p1", PATIENT)
    assert created.status_code == 201
    assert created.headers["etag"] == 'W/"1"'
    assert created.headers["location"].endswith("/fhir/Patient/p1/_history/1")
    assert created.text == PATIENT
    updated = fhir.store("Patient/p1", '{"resourceType":"Patient","id":"p1","active":true}')
    assert (updated.status_code, updated.headers["etag"]) == (200, 'W/"2"')


def test_prefer_minimal_answers_without_a_body(fhir: SandboxClient) -> None:
    assert fhir.store("Patient/p1", PATIENT, Prefer="return=minimal").content == b""


def test_delete_is_204_once_and_again_and_the_resource_is_gone(fhir: SandboxClient) -> None:
    fhir.store("Patient/p1", PATIENT)
    assert [fhir.delete("/fhir/Patient/p1").status_code for _ in range(2)] == [204, 204]
    gone = fhir.get("/fhir/Patient/p1")
    assert gone.status_code == 410
    assert is_outcome(gone)
    again = fhir.store("Patient/p1", PATIENT)
    assert (again.status_code, again.headers["etag"]) == (201, 'W/"3"')


def test_unknown_things_are_404(fhir: SandboxClient) -> None:
    for path in (
        "/fhir/Patient/nobody",
        "/fhir/Nonsense",
        "/fhir/Nonsense/1",
        "/elsewhere",
        "/fhir/Patient/p1/_history",
    ):
        response = fhir.get(path)
        assert response.status_code == 404
        assert is_outcome(response)


@pytest.mark.parametrize(
    "body", ['{"resourceType":"Observation","id":"p1"}', '{"resourceType":"Patient","id":"p2"}', "{", "", '{"id":"p1"}']
)
def test_a_body_that_does_not_fit_the_url_is_400(fhir: SandboxClient, body: str) -> None:
    response = fhir.store("Patient/p1", body)
    assert response.status_code == 400
    assert is_outcome(response)


def test_references_are_checked_for_single_resources_too(fhir: SandboxClient) -> None:
    body = '{"resourceType":"Observation","id":"o1","subject":{"reference":"Patient/p1"}}'
    assert fhir.store("Observation/o1", body).status_code == 400
    fhir.store("Patient/p1", PATIENT)
    assert fhir.store("Observation/o1", body).status_code == 201
    assert fhir.delete("/fhir/Patient/p1").status_code == 409


def test_a_body_above_the_limit_is_413_announced_or_not(start: Start) -> None:
    client = start(max_body=1000)
    large = json.dumps({"resourceType": "Patient", "id": "p1", "language": "x" * 1000})
    assert client.store("Patient/p1", large).status_code == 413

    def pieces() -> Iterator[bytes]:
        yield large.encode()

    for path in ("/fhir", "/fhir/Binary/b1"):
        method, kind = ("POST", JSON) if path == "/fhir" else ("PUT", "application/zip")
        response = client.request(method, path, content=pieces(), headers={"content-type": kind})
        assert response.status_code == 413
        assert is_outcome(response)
    assert client.store("Patient/p1", PATIENT).status_code == 201


def test_other_media_types_methods_and_encodings_are_refused(fhir: SandboxClient) -> None:
    assert fhir.put("/fhir/Patient/p1", content="<Patient/>", headers={"content-type": "text/xml"}).status_code == 415
    assert fhir.store("Patient/p1", PATIENT, **{"content-encoding": "gzip"}).status_code == 415
    assert fhir.patch("/fhir/Patient/p1").status_code == 405
    assert fhir.get("/fhir").status_code == 405


def test_metadata_is_a_capability_statement_of_r4_and_says_that_this_is_a_sandbox(fhir: SandboxClient) -> None:
    statement = fhir.get("/fhir/metadata").json()
    assert statement["resourceType"] == "CapabilityStatement"
    assert statement["fhirVersion"] == "4.0.1"
    assert "not for production" in statement["implementation"]["description"]
    assert {"code": "transaction"} in statement["rest"][0]["interaction"]
    assert "not for production" in fhir.get("/").json()["notice"]


def test_credentials_are_asked_for_where_the_gate_has_them(start: Start) -> None:
    client = start(gate=RequiredCredentials(username="user", password="pass:wörd"))
    refused = client.get("/fhir/metadata")
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Basic")
    assert is_outcome(refused)
    assert client.get("/fhir/metadata", auth=("user", "wrong")).status_code == 401
    assert client.get("/fhir/metadata", auth=("user", "pass:wörd")).status_code == 200
    assert client.get("/fhir/metadata", headers={"Authorization": "Bearer x"}).status_code == 401
    assert client.counts() == {}
