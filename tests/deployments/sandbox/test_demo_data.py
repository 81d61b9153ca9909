"""The bundled demo data: its promised content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from deployments.sandbox.common.r4 import ID, RESOURCE_TYPES
from deployments.sandbox.data import DATA
from deployments.sandbox.fhir.resource import references
from tests.deployments.sandbox.conftest import JSON, SandboxClient, Start


def bundles() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(DATA.glob("*.ndjson")):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield path.name, json.loads(line)


def test_every_line_is_a_transaction_of_puts_of_one_patient() -> None:
    for name, bundle in bundles():
        assert (bundle["resourceType"], bundle["type"]) == ("Bundle", "transaction")
        for entry in bundle["entry"]:
            resource = entry["resource"]
            assert resource["resourceType"] in RESOURCE_TYPES
            assert ID.fullmatch(resource["id"])
            assert entry["request"] == {"method": "PUT", "url": f"{resource['resourceType']}/{resource['id']}"}
        people = {
            entry["resource"]["id"] for entry in bundle["entry"] if entry["resource"]["resourceType"] == "Patient"
        }
        assert len(people) == (0 if name == "core.ndjson" else 1)
        said = {reference for entry in bundle["entry"] for _, reference in references(entry["resource"])}
        assert {text for text in said if text.startswith("Patient/")} == {f"Patient/{person}" for person in people}


def test_every_id_is_there_once_and_every_reference_leads_to_a_resource() -> None:
    resources = [entry["resource"] for _, bundle in bundles() for entry in bundle["entry"]]
    keys = [f"{resource['resourceType']}/{resource['id']}" for resource in resources]
    assert len(keys) == len(set(keys))
    assert {reference for resource in resources for _, reference in references(resource)} <= set(keys)


def test_it_loads_into_a_strict_server_and_comes_back_as_it_was(start: Start) -> None:
    client = start()
    load(client)
    stored = {
        json.dumps(json.loads(line), sort_keys=True) for line in client.get("/_sandbox/resources").text.splitlines()
    }
    source = {json.dumps(entry["resource"], sort_keys=True) for _, bundle in bundles() for entry in bundle["entry"]}
    assert stored == source
    assert '"value":1.50,' in client.get("/fhir/MedicationAdministration/demo-01-given-1").text


def load(client: SandboxClient) -> None:
    for path in sorted(DATA.glob("*.ndjson")):  # core comes first by its name
        for line in path.read_bytes().splitlines():
            assert client.post("/fhir", content=line, headers={"content-type": JSON}).status_code == 200
