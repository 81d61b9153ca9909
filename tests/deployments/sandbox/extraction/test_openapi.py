"""Descriptions of the server: metadata, OpenAPI, and answers to unknown requests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deployments.sandbox.common.service import DISCLAIMER
from tests.deployments.sandbox.extraction.conftest import ExtractionServerClient, Start, crtdl


@pytest.fixture
def client(start: Start, hospital: Path) -> ExtractionServerClient:
    return start(hospital)


def test_the_capability_statement_lists_task_and_the_operations(client: ExtractionServerClient) -> None:
    statement = client.get("/fhir/metadata").json()
    assert (statement["resourceType"], statement["fhirVersion"]) == ("CapabilityStatement", "4.0.1")
    rest = statement["rest"][0]
    assert [entry["type"] for entry in rest["resource"]] == ["Task"]
    assert {entry["name"] for entry in rest["operation"]} == {"extract-data", "evaluate-cohort"}
    assert {entry["name"] for entry in rest["resource"][0]["operation"]} == {"pause", "resume", "cancel"}
    assert DISCLAIMER in str(statement)


def test_every_path_of_the_description_answers_and_the_page_lists_it(client: ExtractionServerClient) -> None:
    document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.")
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "<script" not in page.text
    job = client.extract(crtdl()).job
    for path, methods in document["paths"].items():
        assert path in page.text
        url = path.replace("{id}", job).replace("{file}", "core.ndjson")
        for method, operation in methods.items():
            status = client.request(method.upper(), url).status_code
            assert str(status) in operation["responses"], (method, path, status)
        if method == "delete":
            job = client.extract(crtdl()).job
        assert not re.search(r"[{}]", url)


@pytest.mark.parametrize("path", ["/fhir", "/fhir/Patient", "/fhir/Task/x/y", "/fhir/$other", "/x"])
def test_what_is_not_there_is_404_with_an_operation_outcome(client: ExtractionServerClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["resourceType"] == "OperationOutcome"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/fhir/$extract-data"),
        ("GET", "/fhir/$evaluate-cohort"),
        ("POST", "/fhir/Task"),
        ("DELETE", "/fhir/__status/x"),
        ("GET", "/fhir/Task/x/$pause"),
        ("PUT", "/fhir/metadata"),
    ],
)
def test_a_method_that_is_not_there_is_405(client: ExtractionServerClient, method: str, path: str) -> None:
    assert client.request(method, path).status_code == 405


def test_head_is_get_without_a_body(client: ExtractionServerClient) -> None:
    answer = client.head("/fhir/metadata")
    assert (answer.status_code, answer.content) == (200, b"")
    assert int(answer.headers["content-length"]) == len(client.get("/fhir/metadata").content)
