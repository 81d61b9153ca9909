"""Search by ``_id`` and ``identifier``, pages, totals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.deployments.sandbox.conftest import SandboxClient, Start

SID = "http://medizininformatik-initiative.de/sid/project-identifier"


def fill(client: SandboxClient) -> None:
    entries = []
    for number in range(7):
        identifier = [{"system": f"urn:s{number % 2}", "value": f"v{number}"}, {"value": "shared"}]
        body = {"resourceType": "Patient", "id": f"p{number}", "identifier": identifier}
        entries.append(("PUT", f"Patient/p{number}", json.dumps(body)))
    document = {"resourceType": "DocumentReference", "id": "d1", "masterIdentifier": {"system": SID, "value": "A & B"}}
    entries.append(("PUT", "DocumentReference/d1", json.dumps(document)))
    assert client.bundle(*entries).status_code == 200


@pytest.fixture
def filled(fhir: SandboxClient) -> SandboxClient:
    fill(fhir)
    return fhir


def ids(body: dict[str, Any]) -> list[str]:
    return [entry["resource"]["id"] for entry in body.get("entry", [])]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"_id": "p3"}, ["p3"]),
        ({"_id": "p3,p1,nobody"}, ["p1", "p3"]),
        ({"_id": "nobody"}, []),
        ({"_id": ""}, []),
        ({"identifier": "urn:s1|v3"}, ["p3"]),
        ({"identifier": "urn:s0|v3"}, []),
        ({"identifier": "v3"}, ["p3"]),
        ({"identifier": "urn:s1|"}, ["p1", "p3", "p5"]),
        ({"identifier": "|shared"}, [f"p{n}" for n in range(7)]),
        ({"identifier": "|v3"}, []),
        ({"identifier": "v1,v2"}, ["p1", "p2"]),
        ([("identifier", "urn:s1|"), ("identifier", "v5")], ["p5"]),
        ({"_id": "p1", "identifier": "v2"}, []),
    ],
)
def test_search_finds_by_id_and_identifier(filled: SandboxClient, query: Any, expected: list[str]) -> None:
    body = filled.get("/fhir/Patient", params=query).json()
    assert body["type"] == "searchset"
    assert ids(body) == expected
    assert body["total"] == len(expected)


def test_a_document_reference_is_found_by_its_master_identifier(filled: SandboxClient) -> None:
    found = filled.get("/fhir/DocumentReference", params={"identifier": f"{SID}|A & B"}).json()
    assert ids(found) == ["d1"]
    assert found["entry"][0]["fullUrl"].endswith("/fhir/DocumentReference/d1")


def test_hapi_refuses_unknown_parameters_and_blaze_only_with_strict_handling(start: Start) -> None:
    assert start(manners="hapi").get("/fhir/Patient?colour=blue").status_code == 400
    blaze = start(manners="blaze")
    assert blaze.get("/fhir/Patient?colour=blue").status_code == 200
    assert blaze.get("/fhir/Patient?colour=blue", headers={"Prefer": "handling=strict"}).status_code == 400
