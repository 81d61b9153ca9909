"""Transactions and batches of the sandbox FHIR server (document 3 §7, the server's side)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.deployments.sandbox.conftest import JSON, SandboxClient, Start, bundle

PATIENT = '{"resourceType":"Patient","id":"p1"}'
OBSERVATION = (
    '{"resourceType":"Observation","id":"o1","subject":{"reference":"Patient/p1"},"valueQuantity":{"value":1.50}}'
)


def outcome(response: httpx.Response) -> dict[str, Any]:
    body: dict[str, Any] = response.json()
    assert body["resourceType"] == "OperationOutcome"
    issue: dict[str, Any] = body["issue"][0]
    return issue


def test_a_transaction_stores_every_entry_and_returns_status_location_and_etag(fhir: SandboxClient) -> None:
    response = fhir.bundle(("PUT", "Patient/p1", PATIENT), ("PUT", "Observation/o1", OBSERVATION))
    assert response.status_code == 200
    assert response.headers["content-type"].startswith(JSON)
    body = response.json()
    assert body["type"] == "transaction-response"
    assert [entry["response"]["status"] for entry in body["entry"]] == ["201 Created", "201 Created"]
    assert body["entry"][1]["response"]["location"] == "Observation/o1/_history/1"
    assert body["entry"][1]["response"]["etag"] == "1"
    assert fhir.counts() == {"Observation": 1, "Patient": 1}


def test_resources_come_back_as_the_bytes_they_came_in(fhir: SandboxClient) -> None:
    spelled = (
        '{ "resourceType":"Observation","id":"o2",\n "valueQuantity":{"value":1.50, "unit":"µg\\u002fl"},"x":1e3 }'
    )
    assert fhir.bundle(("PUT", "Observation/o2", spelled)).status_code == 200
    assert fhir.get("/fhir/Observation/o2").content == spelled.encode()
    assert spelled.encode() in fhir.get("/fhir/Observation?_id=o2").content
    assert fhir.get("/_sandbox/resources").content == spelled.replace("\n", "").encode() + b"\n"


def test_a_failing_entry_undoes_the_whole_transaction(fhir: SandboxClient) -> None:
    assert fhir.bundle(("PUT", "Patient/p1", PATIENT)).status_code == 200
    changed = '{"resourceType":"Patient","id":"p1","active":true}'
    broken = '{"resourceType":"Observation","id":"o1","subject":{"reference":"Patient/nobody"}}'
    response = fhir.bundle(("PUT", "Patient/p1", changed), ("PUT", "Observation/o1", broken))
    assert response.status_code == 400
    assert fhir.get("/fhir/Patient/p1").text == PATIENT
    assert fhir.counts() == {"Patient": 1}


def test_hapi_answers_a_missing_reference_with_400_and_names_it_in_the_diagnostics(fhir: SandboxClient) -> None:
    response = fhir.bundle(("PUT", "Observation/o1", OBSERVATION))
    assert response.status_code == 400
    issue = outcome(response)
    assert "Patient/p1 not found" in issue["diagnostics"]
    assert "Observation.subject" in issue["diagnostics"]


def test_blaze_answers_a_missing_reference_with_409_code_and_details(start: Start) -> None:
    response = start(manners="blaze").bundle(("PUT", "Observation/o1", OBSERVATION))
    assert response.status_code == 409
    issue = outcome(response)
    assert issue["code"] == "conflict"
    assert issue["diagnostics"] == "Referential integrity violated. Resource `Patient/p1` doesn't exist."
    assert "Referential integrity violated" in issue["details"]["text"]


@pytest.mark.parametrize("manners", ["hapi", "blaze"])
def test_references_may_lead_to_entries_of_the_same_bundle_in_any_order(start: Start, manners: str) -> None:
    client = start(manners=manners)
    assert client.bundle(("PUT", "Observation/o1", OBSERVATION), ("PUT", "Patient/p1", PATIENT)).status_code == 200


def test_circles_of_references_are_possible_within_a_transaction(fhir: SandboxClient) -> None:
    one = '{"resourceType":"Observation","id":"a","hasMember":[{"reference":"Observation/b"}]}'
    two = '{"resourceType":"Observation","id":"b","hasMember":[{"reference":"Observation/a"}]}'
    assert fhir.bundle(("PUT", "Observation/a", one), ("PUT", "Observation/b", two)).status_code == 200


@pytest.mark.parametrize("manners", ["hapi", "blaze"])
def test_the_same_resource_twice_in_one_transaction_is_400(start: Start, manners: str) -> None:
    client = start(manners=manners)
    response = client.bundle(("PUT", "Patient/p1", PATIENT), ("PUT", "Patient/p1", PATIENT))
    assert response.status_code == 400
    assert "Patient/p1" in outcome(response)["diagnostics"]
    assert client.counts() == {}


def test_hapi_refuses_purely_numeric_ids_of_clients(fhir: SandboxClient) -> None:
    response = fhir.bundle(("PUT", "Patient/123", '{"resourceType":"Patient","id":"123"}'))
    assert response.status_code == 400
    assert "non-numeric" in outcome(response)["diagnostics"]


def test_a_repeated_put_of_the_same_bytes_makes_no_new_version(fhir: SandboxClient) -> None:
    statuses = [fhir.bundle(("PUT", "Patient/p1", PATIENT)).json()["entry"][0]["response"]["status"] for _ in range(2)]
    assert statuses == ["201 Created", "200 OK"]
    assert fhir.get("/fhir/Patient/p1").headers["etag"] == 'W/"1"'
    changed = '{"resourceType":"Patient","id":"p1","active":true}'
    assert fhir.bundle(("PUT", "Patient/p1", changed)).json()["entry"][0]["response"]["etag"] == "2"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'"text"',
        b'{"resourceType":"Patient"}',
        b'{"resourceType":"Bundle","type":"collection","entry":[]}',
        b'{"resourceType":"Bundle","type":"transaction","entry":[{}]}',
        b'{"resourceType":"Bundle","type":"transaction","entry":[7]}',
        bundle(("PUT", "Patient", PATIENT)),
        bundle(("POST", "Patient/p1", PATIENT)),
        bundle(("PUT", "Patient/p1", None)),
        bundle(("PUT", "Patient?identifier=a|b", PATIENT)),
        bundle(("PUT", "Nonsense/p1", PATIENT)),
        bundle(("PUT", "Patient/other", PATIENT)),
        bundle(("PUT", "Patient/p_1", '{"resourceType":"Patient","id":"p_1"}')),
        bundle(("PUT", "Observation/p1", PATIENT)),
        bundle(("PUT", "Patient/p1", '{"resourceType":"Patient"}')),
        bundle(("PUT", "Patient/p1", "[1]")),
        bundle(("PUT", "Patient/p1", b'{"resourceType":"Patient","id":"p1","x":"\xff"}')),
        b'{"resourceType":"Bundle","type":"transaction","entry":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_what_is_no_transaction_is_400_with_an_operation_outcome(fhir: SandboxClient, body: bytes) -> None:
    response = fhir.post("/fhir", content=body, headers={"content-type": JSON})
    assert response.status_code == 400
    assert outcome(response)["severity"] == "error"
    assert fhir.counts() == {}


def test_blaze_answers_with_bare_status_weak_etag_and_absolute_location(start: Start) -> None:
    client = start(manners="blaze")
    entry = client.bundle(("PUT", "Patient/p1", PATIENT)).json()["entry"][0]["response"]
    assert entry["status"] == "201"
    assert entry["etag"] == 'W/"1"'
    assert entry["location"] == f"{str(client.base_url).rstrip('/')}/fhir/Patient/p1/_history/1"
