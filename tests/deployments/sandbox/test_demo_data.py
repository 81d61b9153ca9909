"""The bundled demo data: their promised content."""

from __future__ import annotations

import json
from typing import Any

from deployments.sandbox.data import DATA
from deployments.sandbox.extraction.tree import references
from deployments.sandbox.r4 import ID, resource_types

BUNDLES: list[tuple[str, dict[str, Any]]] = [
    (path.name, json.loads(line))
    for path in sorted(DATA.glob("*.ndjson"))
    for line in path.read_text(encoding="utf-8").splitlines()
]


def test_every_line_is_a_transaction_of_puts_of_one_patient() -> None:
    for name, bundle in BUNDLES:
        assert (bundle["resourceType"], bundle["type"]) == ("Bundle", "transaction")
        resources = [entry["resource"] for entry in bundle["entry"]]
        for entry, resource in zip(bundle["entry"], resources, strict=True):
            assert resource["resourceType"] in resource_types()
            assert ID.fullmatch(resource["id"])
            assert entry["request"] == {"method": "PUT", "url": f"{resource['resourceType']}/{resource['id']}"}
        people = {f"Patient/{each['id']}" for each in resources if each["resourceType"] == "Patient"}
        assert len(people) == (0 if name == "core.ndjson" else 1)
        said = {one["reference"] for each in resources for one in references(each)}
        assert {text for text in said if text.startswith("Patient/")} == people


def test_every_id_is_there_once_and_every_reference_leads_to_a_resource() -> None:
    resources = [entry["resource"] for _, bundle in BUNDLES for entry in bundle["entry"]]
    keys = [f"{each['resourceType']}/{each['id']}" for each in resources]
    assert len(keys) == len(set(keys))
    assert {one["reference"] for each in resources for one in references(each)} <= set(keys)
