"""Findings of the validation service: structure, types, codes and invariants of R4 (document 3 §6)."""

from __future__ import annotations

import pytest

from tests.deployments.sandbox.validation.support import OBSERVATION, PATIENT, Json, bundle, findings


def without(resource: Json, *keys: str) -> Json:
    return {key: value for key, value in resource.items() if key not in keys}


UNKNOWN = {"_status": {"extension": [{"url": "http://x.org/e", "valueCode": "unknown"}]}}
CONTAINED = {"contained": [PATIENT], "subject": {"reference": "#p1"}}
VALID = {
    "a value of a choice": OBSERVATION | {"valueQuantity": {"value": 1, "unit": "g/dl"}},
    "a required element by its extension only": without(OBSERVATION, "status") | UNKNOWN,
    "partial dates": PATIENT | {"birthDate": "1970", "deceasedDateTime": "2020-05"},
    "a contained resource": OBSERVATION | CONTAINED,
    "a media type, of which there is no list": {"resourceType": "Binary", "contentType": "application/x-own"},
    "a reference that nothing in the Bundle answers": bundle(OBSERVATION),
}


@pytest.mark.parametrize("resource", VALID.values(), ids=VALID)
def test_valid_resources_have_no_finding(resource: Json) -> None:
    assert findings(resource) == []


BROKEN = [
    (without(OBSERVATION, "status"), "required", "Profile_Minimum", "Observation.status"),
    (PATIENT | {"haircolor": "red"}, "structure", "Structure_Unknown_Element", "Patient.haircolor"),
    (PATIENT | {"name": [{"famly": "A"}]}, "structure", "Structure_Unknown_Element", "Patient.name[0].famly"),
    (
        OBSERVATION | {"valueQuantity": {"value": "5"}},
        "structure", "Structure_Wrong_Type", "Observation.value.ofType(Quantity).value",
    ),
    (PATIENT | {"maritalStatus": "M"}, "structure", "Structure_Wrong_Type", "Patient.maritalStatus"),
    (PATIENT | {"birthDate": None}, "structure", "Structure_Wrong_Type", "Patient.birthDate"),
    (OBSERVATION | {"status": "done"}, "code-invalid", "Value_Code", "Observation.status"),
]  # fmt: skip


@pytest.mark.parametrize(("resource", "code", "name", "expression"), BROKEN)
def test_a_broken_resource_has_this_finding_and_no_other(resource: Json, code: str, name: str, expression: str) -> None:
    assert findings(resource) == [("error", code, name, expression)]


INVARIANTS = [
    (OBSERVATION | {"valueQuantity": {"value": 5}, "dataAbsentReason": {"text": "x"}}, "Observation"),
    (PATIENT | {"contact": [{"gender": "male"}]}, "Patient.contact[0]"),
    (PATIENT | {"name": [{"period": {"start": "2024-02-01", "end": "2024-01-31"}}]}, "Patient.name[0].period"),
    (OBSERVATION | {"subject": {"reference": "#nobody"}}, "Observation.subject"),
]


@pytest.mark.parametrize(("resource", "expression"), INVARIANTS, ids=["obs-6", "pat-1", "per-1", "ref-1"])
def test_a_broken_invariant_is_an_error_at_its_element(resource: Json, expression: str) -> None:
    assert [(found[0], found[1], found[3]) for found in findings(resource)] == [("error", "invariant", expression)]


def test_every_entry_of_a_bundle_is_checked() -> None:
    found = findings(bundle(PATIENT, PATIENT | {"gender": "f"}, OBSERVATION | {"status": "done"}))
    assert [expression for *_, expression in found] == [
        "Bundle.entry[1].resource.ofType(Patient).gender", "Bundle.entry[2].resource.ofType(Observation).status",
    ]  # fmt: skip
