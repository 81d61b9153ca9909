"""Elements that FHIR requires and no group requests are masked in a copy (document 3 §2, "Extraction semantics")."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.sandbox.extraction.redact import element_tree, redact
from tests.deployments.sandbox.extraction.conftest import concept

Json = dict[str, Any]
MASKED = {"extension": [{"url": "http://hl7.org/fhir/StructureDefinition/data-absent-reason", "valueCode": "masked"}]}
SUBJECT = {"reference": "Patient/p1"}


def copied(source: Json, *asked: str) -> Json:
    """Return the copy of a resource with the requested elements; its references stay."""
    tree = element_tree(source["resourceType"], [tuple(path.split(".")) for path in asked])
    return redact({"id": "x"} | source, tree, ["http://example.org/p"], lambda _key: True)


def rest(kind: str, source: Json, asked: str) -> Json:
    """Return the copy without the elements that every copy has."""
    found = copied({"resourceType": kind, "subject": SUBJECT, **source}, asked)
    return {key: value for key, value in found.items() if key not in ("resourceType", "id", "meta", "subject")}


@pytest.mark.parametrize(
    ("kind", "source", "asked", "expected"),
    [
        ("Encounter", {"status": "finished"}, "status", {"status": "finished", "class": MASKED}),
        ("Encounter", {"class": {"code": "AMB"}}, "status", {"class": MASKED}),
        ("CareTeam", {"status": "active"}, "status", {"status": "active"}),
        ("Goal", {"lifecycleStatus": "active"}, "note", {"_lifecycleStatus": MASKED, "description": MASKED}),
    ],
)
def test_a_required_element_that_nobody_asked_for_is_masked(
    kind: str, source: Json, asked: str, expected: Json
) -> None:
    assert rest(kind, source, asked) == expected


@pytest.mark.parametrize(
    ("source", "asked", "expected"),
    [
        ({"medicationReference": {"reference": "Medication/m"}}, "note", {"medicationReference": MASKED}),
        ({"medicationCodeableConcept": concept("s", "1")}, "note", {"medicationCodeableConcept": MASKED}),
        ({}, "note", {"medicationCodeableConcept": MASKED}),
        (
            {"medicationCodeableConcept": concept("s", "1")},
            "medicationReference",
            {"medicationCodeableConcept": MASKED},
        ),
        ({}, "medication[x]", {}),
    ],
)
def test_a_required_choice_is_masked_as_the_type_that_the_data_have(source: Json, asked: str, expected: Json) -> None:
    assert rest("MedicationStatement", source, asked) == {"_status": MASKED} | expected


def test_parts_that_were_asked_for_get_their_required_parts_and_empty_ones_go() -> None:
    source: Json = {"location": [{"status": "active", "location": {"display": "x"}}, {"period": {"start": "2024"}}]}
    assert rest("Encounter", source, "location.status") == {
        "_status": MASKED,
        "class": MASKED,
        "location": [{"status": "active", "location": MASKED}, {"location": MASKED}],
    }
    assert rest("Encounter", {"length": {"value": 1}}, "length.unit") == {"_status": MASKED, "class": MASKED}
    assert rest("CareTeam", {"participant": [{"role": []}, {"period": {}}]}, "participant.member") == {}


def test_a_required_element_with_parts_is_masked_down_to_its_required_parts() -> None:
    found = copied({"resourceType": "Claim", "patient": SUBJECT}, "status")
    assert found["insurance"] == [MASKED | {"_sequence": MASKED, "_focal": MASKED, "coverage": MASKED}]
