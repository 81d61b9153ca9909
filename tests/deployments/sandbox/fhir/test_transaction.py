"""Transactions and batches of the sandbox FHIR server (document 3 §7, the server's side)."""

from __future__ import annotations

import json
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


def test_without_references_nothing_is_checked(start: Start) -> None:
    assert start(references=False).bundle(("PUT", "Observation/o1", OBSERVATION)).status_code == 200


@pytest.mark.parametrize(
    "reference", ["#med", "https://elsewhere.example/fhir/Patient/7", "Patient/p1/_history/3", "Patient/p1#part"]
)
def test_contained_external_and_versioned_references_are_no_obstacle(fhir: SandboxClient, reference: str) -> None:
    body = json.dumps({"resourceType": "Observation", "id": "o9", "subject": {"reference": reference}})
    assert fhir.bundle(("PUT", "Patient/p1", PATIENT), ("PUT", "Observation/o9", body)).status_code == 200


def test_absolute_references_to_this_server_are_checked(fhir: SandboxClient) -> None:
    url = f"{fhir.base_url}/fhir/Patient/p1".replace("//fhir", "/fhir")
    body = json.dumps({"resourceType": "Observation", "id": "o9", "subject": {"reference": url}})
    assert fhir.bundle(("PUT", "Observation/o9", body)).status_code == 400
    assert fhir.bundle(("PUT", "Patient/p1", PATIENT), ("PUT", "Observation/o9", body)).status_code == 200


def test_urn_references_are_resolved_to_what_their_full_url_became(fhir: SandboxClient) -> None:
    urn = "urn:uuid:61ebe359-bfdc-4613-8bf2-c5e300945f0a"
    body = (
        '{"resourceType":"Bundle","type":"transaction","entry":['
        f'{{"fullUrl":"{urn}","resource":{{"resourceType":"Patient","active":true}},'
        '"request":{"method":"POST","url":"Patient"}},'
        f'{{"resource":{{"resourceType":"Observation","id":"o1","subject":{{"reference":"{urn}"}},'
        '"valueQuantity":{"value":2.0}},"request":{"method":"PUT","url":"Observation/o1"}}]}'
    )
    response = fhir.post("/fhir", content=body, headers={"content-type": JSON})
    assert response.status_code == 200
    key = response.json()["entry"][0]["response"]["location"].removesuffix("/_history/1")
    stored = fhir.get("/fhir/Observation/o1").text
    assert f'"subject":{{"reference":"{key}"}}' in stored
    assert '"value":2.0}' in stored
    assert fhir.get(f"/fhir/{key}").json()["active"] is True


def test_hapi_refuses_a_urn_that_nothing_stands_for(fhir: SandboxClient) -> None:
    body = '{"resourceType":"Observation","id":"o1","subject":{"reference":"urn:uuid:1"}}'
    response = fhir.bundle(("PUT", "Observation/o1", body))
    assert response.status_code == 400
    assert "urn:uuid:1" in outcome(response)["diagnostics"]


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


@pytest.mark.parametrize("options", [{"manners": "blaze"}, {"manners": "hapi", "numeric_ids": True}])
def test_numeric_ids_are_fine_on_blaze_and_where_they_are_switched_on(start: Start, options: dict[str, Any]) -> None:
    client = start(**options)
    assert client.bundle(("PUT", "Patient/123", '{"resourceType":"Patient","id":"123"}')).status_code == 200


def test_a_repeated_put_of_the_same_bytes_makes_no_new_version(fhir: SandboxClient) -> None:
    statuses = [fhir.bundle(("PUT", "Patient/p1", PATIENT)).json()["entry"][0]["response"]["status"] for _ in range(2)]
    assert statuses == ["201 Created", "200 OK"]
    assert fhir.get("/fhir/Patient/p1").headers["etag"] == 'W/"1"'
    changed = '{"resourceType":"Patient","id":"p1","active":true}'
    assert fhir.bundle(("PUT", "Patient/p1", changed)).json()["entry"][0]["response"]["etag"] == "2"


def test_post_gives_a_new_id_and_ignores_the_one_in_the_body(fhir: SandboxClient) -> None:
    body = '{"resourceType":"Patient","id":"mine","multipleBirthInteger":1.0}'
    response = fhir.bundle(("POST", "Patient", body), ("POST", "Patient", body))
    keys = [entry["response"]["location"].removesuffix("/_history/1") for entry in response.json()["entry"]]
    assert len(set(keys)) == 2
    assert "Patient/mine" not in keys
    for key in keys:
        text = fhir.get(f"/fhir/{key}").text
        assert json.loads(text)["id"] == key.removeprefix("Patient/")
        assert '"multipleBirthInteger":1.0' in text


def test_delete_in_a_transaction_is_204_and_respects_references(fhir: SandboxClient) -> None:
    fhir.bundle(("PUT", "Patient/p1", PATIENT), ("PUT", "Observation/o1", OBSERVATION))
    refused = fhir.bundle(("DELETE", "Patient/p1", None))
    assert refused.status_code == 409
    assert "Observation/o1" in outcome(refused)["diagnostics"]
    both = fhir.bundle(("DELETE", "Patient/p1", None), ("DELETE", "Observation/o1", None))
    assert [entry["response"]["status"] for entry in both.json()["entry"]] == ["204 No Content"] * 2
    assert fhir.counts() == {}
    assert fhir.get("/fhir/Patient/p1").status_code == 410


def test_a_reference_to_what_the_same_transaction_deletes_is_missing(fhir: SandboxClient) -> None:
    fhir.bundle(("PUT", "Patient/p1", PATIENT))
    response = fhir.bundle(("DELETE", "Patient/p1", None), ("PUT", "Observation/o1", OBSERVATION))
    assert response.status_code in (400, 409)
    assert fhir.counts() == {"Patient": 1}


def test_get_entries_are_answered_after_the_writes_of_the_transaction(fhir: SandboxClient) -> None:
    response = fhir.bundle(("GET", "Patient/p1", None), ("PUT", "Patient/p1", PATIENT))
    assert response.json()["entry"][0]["resource"] == json.loads(PATIENT)


def test_prefer_decides_whether_the_answer_repeats_the_resources(fhir: SandboxClient) -> None:
    minimal = fhir.bundle(("PUT", "Patient/p1", PATIENT), Prefer="return=minimal")
    assert "resource" not in minimal.json()["entry"][0]
    whole = fhir.bundle(("PUT", "Patient/p1", PATIENT), Prefer="return=representation")
    assert whole.json()["entry"][0]["resource"] == json.loads(PATIENT)


def test_if_match_of_an_entry_is_a_conflict_when_it_is_stale(start: Start) -> None:
    for manners, status in (("hapi", 409), ("blaze", 412)):
        client = start(manners=manners)
        client.bundle(("PUT", "Patient/p1", PATIENT))
        body = bundle(("PUT", "Patient/p1", PATIENT)).replace(b'"method"', b'"ifMatch":"W/\\"7\\"","method"')
        response = client.post("/fhir", content=body)
        assert response.status_code == status
        assert outcome(response)["code"] == "conflict"


def test_a_batch_treats_each_entry_alone(fhir: SandboxClient) -> None:
    response = fhir.bundle(
        ("PUT", "Patient/p1", PATIENT),
        ("PUT", "Observation/o2", '{"resourceType":"Observation","id":"o2","subject":{"reference":"Patient/no"}}'),
        ("GET", "Patient/p1", None),
        ("PATCH", "Patient/p1", None),
        kind="batch",
    )
    body = response.json()
    assert response.status_code == 200
    assert body["type"] == "batch-response"
    assert [entry["response"]["status"][:3] for entry in body["entry"]] == ["201", "400", "200", "400"]
    assert body["entry"][1]["response"]["outcome"]["resourceType"] == "OperationOutcome"
    assert fhir.counts() == {"Patient": 1}


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


def test_an_empty_transaction_is_answered(fhir: SandboxClient) -> None:
    response = fhir.bundle()
    assert response.status_code == 200
    assert response.json()["entry"] == []


def test_blaze_answers_with_bare_status_weak_etag_and_absolute_location(start: Start) -> None:
    client = start(manners="blaze")
    entry = client.bundle(("PUT", "Patient/p1", PATIENT)).json()["entry"][0]["response"]
    assert entry["status"] == "201"
    assert entry["etag"] == 'W/"1"'
    assert entry["location"] == f"{str(client.base_url).rstrip('/')}/fhir/Patient/p1/_history/1"
