"""``POST /validateResource`` over HTTP (document 3 §6)."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.validation.app import ValidationOptions, validation_service
from tests.deployments.sandbox.conftest import SandboxClient, Start, starting
from tests.deployments.sandbox.validation.support import OBSERVATION, PATIENT, Json, bundle, message

FHIR = "application/fhir+json"


@pytest.fixture
def begin() -> Iterator[Start]:
    with starting(validation_service, ValidationOptions) as start:
        yield start


@pytest.fixture
def service(begin: Start) -> SandboxClient:
    return begin()


def post(client: httpx.Client, body: Any, path: str = "/validateResource", kind: str | None = FHIR) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(path, content=content, headers={"content-type": kind} if kind else {})


def issues_of(response: httpx.Response) -> list[Json]:
    assert response.headers["content-type"].startswith(FHIR)
    body = response.json()
    assert body["resourceType"] == "OperationOutcome"
    listed: list[Json] = body["issue"]
    return listed


def test_a_valid_bundle_is_answered_with_200_and_two_notes(service: SandboxClient) -> None:
    response = post(service, bundle(PATIENT, OBSERVATION))
    assert response.status_code == 200
    found = issues_of(response)
    assert [(each["severity"], each["code"], message(each)) for each in found] == [
        ("information", "informational", "All_OK"),
        ("information", "informational", "Not_Checked"),
    ]


def test_an_invalid_bundle_is_answered_with_200_too(service: SandboxClient) -> None:
    response = post(service, bundle(PATIENT, OBSERVATION | {"status": "done"}))
    assert response.status_code == 200
    first = issues_of(response)[0]
    assert (first["severity"], first["code"], message(first)) == ("error", "code-invalid", "Value_Code")
    assert first["expression"] == ["Bundle.entry[1].resource.ofType(Observation).status"]


@pytest.mark.parametrize("body", [bundle(PATIENT), PATIENT, PATIENT | {"gender": "f"}, {"resourceType": "Nothing"}])
def test_every_answer_names_what_was_not_checked(service: SandboxClient, body: Json) -> None:
    last = issues_of(post(service, body))[-1]
    assert (last["severity"], message(last)) == ("information", "Not_Checked")
    for part in ("meta.profile", "terminology beyond", "references resolve", "ctm-1, rng-2, txt-1, txt-2", "dom-6"):
        assert part in last["diagnostics"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"<Patient/>",
        b"\xff\xfe",
        b'{"resourceType":"Patient"} x',
        b'{"resourceType":"Patient","a":NaN}',
        b'{"resourceType":"Observation","valueQuantity":{"value":1E999999999}}',
        b'{"resourceType":"Patient","extension":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[]",
        b'"Patient"',
        b"{}",
        b'{"resourceType":7}',
    ],
)
def test_what_is_no_json_or_no_resource_is_400(service: SandboxClient, body: bytes) -> None:
    response = post(service, body)
    assert response.status_code == 400
    assert [each["severity"] for each in issues_of(response)] == ["error"]


@pytest.mark.parametrize("path", ["/validateResource", "/$validate", "/fhir/$validate", "/validateResource/"])
def test_it_validates_at_its_paths(service: SandboxClient, path: str) -> None:
    assert post(service, PATIENT, path).status_code == 200


@pytest.mark.parametrize("path", ["/metadata", "/fhir/metadata"])
def test_the_capability_statement_is_valid_itself(service: SandboxClient, path: str) -> None:
    response = service.get(path)
    assert response.status_code == 200
    assert response.json()["fhirVersion"] == "4.0.1"
    assert message(issues_of(post(service, response.content))[0]) == "All_OK"


class Counting:
    """Replaces the validator: counts the requests in progress, and works until enough arrive together."""

    def __init__(self, wanted: int, patience: float) -> None:
        self._lock = threading.Lock()
        self._wanted = wanted
        self._patience = patience
        self._now = 0
        self.most = 0
        self._enough = threading.Event()

    def validate(self, resource: Any) -> Any:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            if self._now == self._wanted:
                self._enough.set()
        self._enough.wait(self._patience)
        with self._lock:
            self._now -= 1
        raise LookupError("Secret of a patient")


@pytest.mark.parametrize(("serial", "expected", "patience"), [(True, 1, 0.05), (False, 3, 30)])
def test_the_serial_quirk_works_on_one_request_at_a_time(serial: bool, expected: int, patience: float) -> None:
    frame = validation_service(ValidationOptions(serial=serial))
    counting = Counting(3, patience)
    with serve_in_thread(frame) as served, SandboxClient(served.url) as client:
        frame._inner._validator = counting  # type: ignore[attr-defined]
        threads = [threading.Thread(target=post, args=(client, PATIENT)) for _ in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert counting.most == expected


def test_a_defect_is_500_and_neither_answer_nor_log_quotes_data(caplog: pytest.LogCaptureFixture) -> None:
    frame = validation_service()
    with serve_in_thread(frame) as served, SandboxClient(served.url) as client, caplog.at_level(logging.DEBUG):
        frame._inner._validator = Counting(1, 0)  # type: ignore[attr-defined]
        response = post(client, PATIENT)
    assert response.status_code == 500
    assert "Secret" not in response.text
    assert "Secret" not in caplog.text
    assert "LookupError in test_app.py" in caplog.text


def test_no_request_leaves_data_in_the_log(service: SandboxClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        post(service, PATIENT | {"gender": "Secret"})
        post(service, b'{"resourceType":"Secret')
    assert "Secret" not in caplog.text
