"""Behaviour that all sandbox services share, each tested with a request of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from deployments.sandbox.common.gate import RequiredCredentials
from deployments.sandbox.flattening.app import FlatteningOptions, flattening_service
from deployments.sandbox.pseudonymization.app import PseudonymizationOptions, pseudonymization_service
from deployments.sandbox.validation.app import ValidationOptions, validation_service
from tests.deployments.sandbox.conftest import JSON, SandboxClient, Start, starting
from tests.deployments.sandbox.flattening.support import columns, parameters, view

PATIENT = {"resourceType": "Patient", "id": "p"}
RUN = "/fhir/ViewDefinition/$run?_format=ndjson"


@dataclass(frozen=True)
class ServiceKind:
    """A service, a request that it accepts, and the log entry for the request."""

    make: Callable[..., Any]
    options: Callable[..., Any]
    path: str
    body: bytes
    entries: int
    types: dict[str, int]

    def post(self, client: SandboxClient, body: Any = None, kind: str | None = JSON, **headers: str) -> httpx.Response:
        headers |= {"accept": "application/x-ndjson"} | ({"content-type": kind} if kind else {})
        return client.post(self.path, content=body or self.body, headers=headers)


def bundle(*resources: dict[str, Any]) -> bytes:
    entries = [{"fullUrl": f"urn:x:{number}", "resource": each} for number, each in enumerate(resources)]
    return json.dumps({"resourceType": "Bundle", "type": "collection", "entry": entries}).encode()


KINDS = {
    "pseudonymization": ServiceKind(
        pseudonymization_service, PseudonymizationOptions, "/fhir/$de-identify",
        bundle(PATIENT).replace(b"]}", b",{}]}"), 2, {"Patient": 1},
    ),
    "flattening": ServiceKind(
        flattening_service, FlatteningOptions, RUN,
        parameters(view({"column": columns("id")}), [PATIENT, PATIENT]), 2, {"Patient": 2},
    ),
    "validation": ServiceKind(
        validation_service, ValidationOptions, "/validateResource",
        bundle(PATIENT, PATIENT, {"resourceType": "Observation"}), 3, {"Bundle": 1, "Patient": 2, "Observation": 1},
    ),
}  # fmt: skip
every = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
of_json = pytest.mark.parametrize("kind", [KINDS["pseudonymization"], KINDS["validation"]], ids=lambda kind: kind.path)


@pytest.fixture
def begin(kind: ServiceKind) -> Iterator[Start]:
    with starting(kind.make, kind.options) as start:
        yield start


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, SandboxClient]]:
    """A service of each kind, shared by all tests that change no state."""
    with ExitStack() as stack:
        yield {kind.path: stack.enter_context(starting(kind.make, kind.options))() for kind in KINDS.values()}


@pytest.fixture
def client(clients: dict[str, SandboxClient], kind: ServiceKind) -> SandboxClient:
    made = clients[kind.path]
    made.delete("/_sandbox/requests")
    return made


@of_json
@pytest.mark.parametrize("other", ["text/plain", "application/xml", "application/fhir+xml", "", None])
def test_another_content_type_is_415(client: SandboxClient, kind: ServiceKind, other: str | None) -> None:
    assert_refused(kind.post(client, kind=other), 415)


@every
def test_a_body_above_the_limit_is_413_announced_or_not(begin: Start, kind: ServiceKind) -> None:
    assert kind.post(begin(max_body=len(kind.body))).status_code == 200
    below = begin(max_body=len(kind.body) - 1)
    for body in (kind.body, iter([kind.body[:100], kind.body[100:]])):
        assert_refused(kind.post(below, body), 413)


@pytest.mark.parametrize(
    ("kind", "method", "path", "status"),
    [
        (KINDS[name], method, path, status)
        for name, method, path, status in (
            ("flattening", "GET", RUN, 405), ("flattening", "POST", "/fhir/metadata", 405),
            ("flattening", "GET", "/fhir", 404), ("flattening", "POST", "/fhir/ViewDefinition", 404),
            ("flattening", "POST", "/fhir/Patient/$run", 404), ("flattening", "GET", "/metadata", 404),
            ("pseudonymization", "GET", "/fhir/Patient/1", 404), ("pseudonymization", "GET", "/elsewhere", 404),
            ("pseudonymization", "GET", "/fhir/$de-identify", 405), ("pseudonymization", "POST", "/fhir/metadata", 405),
            ("validation", "GET", "/validateResource", 405), ("validation", "PUT", "/validateResource", 405),
            ("validation", "POST", "/metadata", 405), ("validation", "POST", "/Patient", 404),
            ("validation", "GET", "/fhir", 404),
        )
    ],
    ids=lambda one: one.options.__name__ if isinstance(one, ServiceKind) else None,
)  # fmt: skip
def test_what_is_not_there(client: SandboxClient, method: str, path: str, status: int) -> None:
    assert_refused(client.request(method, path), status)


def assert_refused(response: httpx.Response, status: int) -> None:
    """Assert that the answer is an OperationOutcome with one issue."""
    assert response.status_code == status
    assert response.headers["content-type"].startswith(JSON)
    assert (response.json()["resourceType"], len(response.json()["issue"])) == ("OperationOutcome", 1)


@every
def test_it_asks_for_credentials_when_it_has_some(begin: Start, kind: ServiceKind) -> None:
    assert kind.post(begin(RequiredCredentials(token="t"))).status_code == 401


@every
def test_the_request_log_counts_entries_and_types(client: SandboxClient, kind: ServiceKind) -> None:
    kind.post(client)
    seen = client.request_log()
    (request,) = seen["requests"]
    assert (request["entries"], request["types"], request["status"]) == (kind.entries, kind.types, 200)
    assert seen["max_entries"] == kind.entries


@every
def test_faults_can_be_ordered(client: SandboxClient, kind: ServiceKind) -> None:
    client.faults({"action": "status", "status": 503}, {"action": "cut", "bytes": 10})
    assert kind.post(client).status_code == 503
    with pytest.raises(httpx.RemoteProtocolError):
        kind.post(client)
    assert kind.post(client).status_code == 200
