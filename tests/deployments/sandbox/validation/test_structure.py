"""R4 structure: elements, cardinalities, types, formats, choices, required codes (document 3 §6)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.deployments.sandbox.validation.support import OBSERVATION, PATIENT, Json, bundle, findings, issues

NARRATIVE = {"status": "generated", "div": '<div xmlns="http://www.w3.org/1999/xhtml">x</div>'}


def observation(**changes: Any) -> Json:
    return OBSERVATION | changes


def without(resource: Json, *keys: str) -> Json:
    return {key: value for key, value in resource.items() if key not in keys}


VALID = {
    "a patient": PATIENT,
    "an observation": OBSERVATION,
    "a value of a choice": observation(valueQuantity={"value": 1, "unit": "g/dl"}),
    "a required element by its extension only": without(OBSERVATION, "status")
    | {"_status": {"extension": [{"url": "http://x.org/e", "valueCode": "unknown"}]}},
    "a primitive with extensions beside its value": PATIENT | {"_birthDate": {"id": "b"}},
    "null where the extension stands": PATIENT
    | {
        "name": [{"given": [None, "Ann"], "_given": [{"extension": [{"url": "http://x.org", "valueCode": "n"}]}, None]}]
    },
    "a no-break space in a text": PATIENT | {"name": [{"text": "Dr. No"}]},
    "partial dates": PATIENT | {"birthDate": "1970", "deceasedDateTime": "2020-05"},
    "a leap day": PATIENT | {"birthDate": "2024-02-29"},
    "a leap second": {"resourceType": "Patient", "meta": {"lastUpdated": "2016-12-31T23:59:60Z"}},
    "a contained resource": observation(contained=[PATIENT], subject={"reference": "#p1"}),
    "a narrative": PATIENT | {"text": NARRATIVE},
    "Base64 in lines": {"resourceType": "Binary", "contentType": "text/plain", "data": "QUJD\nREVG"},
    "Parameters with a resource": {"resourceType": "Parameters", "parameter": [{"name": "r", "resource": PATIENT}]},
    "Meta as an extension's value (new in 4.0.1)": PATIENT
    | {"extension": [{"url": "http://x.org/e", "valueMeta": {"source": "http://x.org"}}]},
    "a reference that nothing in the Bundle answers": bundle(OBSERVATION),
}


@pytest.mark.parametrize("resource", VALID.values(), ids=VALID.keys())
def test_valid_resources_have_no_finding(resource: Json) -> None:
    assert findings(resource) == []


ERROR = "error"
BROKEN: dict[str, tuple[Json, str, str, str]] = {
    "a required primitive is missing": (
        without(OBSERVATION, "status"),
        "required",
        "Profile_Minimum",
        "Observation.status",
    ),
    "a required object is missing": (without(OBSERVATION, "code"), "required", "Profile_Minimum", "Observation.code"),
    "a required element of a child is missing": (
        PATIENT | {"link": [{"type": "seealso"}]},
        "required",
        "Profile_Minimum",
        "Patient.link[0].other",
    ),
    "an element is not known": (
        PATIENT | {"haircolor": "red"},
        "structure",
        "Structure_Unknown_Element",
        "Patient.haircolor",
    ),
    "a packager's own addition is not known": (
        PATIENT | {"meta": {"project": "x"}},
        "structure",
        "Structure_Unknown_Element",
        "Patient.meta.project",
    ),
    "an element of a data type is not known": (
        PATIENT | {"name": [{}, {"famly": "A"}][1:]},
        "structure",
        "Structure_Unknown_Element",
        "Patient.name[0].famly",
    ),
    "an object has another type's resourceType": (
        PATIENT | {"maritalStatus": {"resourceType": "Patient", "text": "x"}},
        "structure",
        "Structure_Unknown_Element",
        "Patient.maritalStatus.resourceType",
    ),
    "text in place of a number": (
        observation(valueQuantity={"value": "5"}),
        "structure",
        "Structure_Wrong_Type",
        "Observation.value.ofType(Quantity).value",
    ),
    "a number in place of text": (
        PATIENT | {"birthDate": 1970},
        "structure",
        "Structure_Wrong_Type",
        "Patient.birthDate",
    ),
    "text in place of a boolean": (PATIENT | {"active": "true"}, "structure", "Structure_Wrong_Type", "Patient.active"),
    "true in place of a number": (
        observation(valueInteger=True),
        "structure",
        "Structure_Wrong_Type",
        "Observation.value.ofType(integer)",
    ),
    "text in place of an object": (
        PATIENT | {"maritalStatus": "M"},
        "structure",
        "Structure_Wrong_Type",
        "Patient.maritalStatus",
    ),
    "an object in place of text": (
        PATIENT | {"birthDate": {"value": "1970"}},
        "structure",
        "Structure_Wrong_Type",
        "Patient.birthDate",
    ),
    "the wrong type under a choice's name": (
        observation(valueQuantity="5"),
        "structure",
        "Structure_Wrong_Type",
        "Observation.value.ofType(Quantity)",
    ),
    "a type that the choice does not offer": (
        observation(valueAttachment={"url": "http://x.org"}),
        "structure",
        "Structure_Unknown_Element",
        "Observation.valueAttachment",
    ),
    "null": (PATIENT | {"birthDate": None}, "structure", "Structure_Wrong_Type", "Patient.birthDate"),
    "null in a list without anything beside it": (
        PATIENT | {"name": [{"given": ["Ann", None]}]},
        "structure",
        "Structure_Wrong_Type",
        "Patient.name[0].given[1]",
    ),
    "no list for what repeats": (
        PATIENT | {"name": {"text": "A"}},
        "structure",
        "Structure_List_Expected",
        "Patient.name",
    ),
    "a list for what does not repeat": (
        PATIENT | {"birthDate": ["1970"]},
        "structure",
        "Structure_No_List_Expected",
        "Patient.birthDate",
    ),
    "an empty list": (PATIENT | {"name": []}, "structure", "Structure_Empty", "Patient.name"),
    "an empty object (ele-1)": (PATIENT | {"name": [{}]}, "structure", "Structure_Empty", "Patient.name[0]"),
    "an object with an id only (ele-1)": (
        PATIENT | {"name": [{"id": "n"}]},
        "structure",
        "Structure_Empty",
        "Patient.name[0]",
    ),
    "an empty text": (PATIENT | {"name": [{"text": ""}]}, "value", "Value_Format", "Patient.name[0].text"),
    "two types of a choice": (
        observation(valueString="a", valueInteger=1),
        "structure",
        "Structure_One_Of_A_Choice",
        "Observation.value",
    ),
    "two types of a choice, one without value": (
        observation(valueString="a", _valueInteger={"extension": [{"url": "http://x.org", "valueCode": "n"}]}),
        "structure",
        "Structure_One_Of_A_Choice",
        "Observation.value",
    ),
    "a required choice is missing": (
        {"resourceType": "MedicationStatement", "status": "active", "subject": {"display": "x"}},
        "required",
        "Profile_Minimum",
        "MedicationStatement.medication",
    ),
    "a code outside the required list": (PATIENT | {"gender": "f"}, "code-invalid", "Value_Code", "Patient.gender"),
    "a code outside the required list of what repeats": (
        {"resourceType": "HealthcareService", "availableTime": [{"daysOfWeek": ["mon", "monday"]}]},
        "code-invalid",
        "Value_Code",
        "HealthcareService.availableTime[0].daysOfWeek[1]",
    ),
    "a status in capitals": (observation(status="FINAL"), "code-invalid", "Value_Code", "Observation.status"),
    "a time without zone": (
        observation(effectiveDateTime="2024-01-01T10:00:00"),
        "value",
        "Value_Format",
        "Observation.effective.ofType(dateTime)",
    ),
    "a day that does not exist": (PATIENT | {"birthDate": "2023-02-29"}, "value", "Value_Format", "Patient.birthDate"),
    "a German date": (PATIENT | {"birthDate": "31.01.1970"}, "value", "Value_Format", "Patient.birthDate"),
    "a date with a line break": (PATIENT | {"birthDate": "1970-01-31\n"}, "value", "Value_Format", "Patient.birthDate"),
    "an instant without seconds": (
        PATIENT | {"meta": {"lastUpdated": "2024-01-01T10:00Z"}},
        "value",
        "Value_Format",
        "Patient.meta.lastUpdated",
    ),
    "an id with a space": (PATIENT | {"id": "p 1"}, "value", "Value_Format", "Patient.id"),
    "an id of 65 characters": (PATIENT | {"id": "a" * 65}, "value", "Value_Format", "Patient.id"),
    "a URI with a space": (
        PATIENT | {"identifier": [{"system": "http://x .org", "value": "1"}]},
        "value",
        "Value_Format",
        "Patient.identifier[0].system",
    ),
    "a code with a leading space": (
        observation(code={"coding": [{"code": " 718-7"}]}),
        "value",
        "Value_Format",
        "Observation.code.coding[0].code",
    ),
    "Base64 of the wrong length": (
        {"resourceType": "Binary", "contentType": "text/plain", "data": "QUJ"},
        "value",
        "Value_Format",
        "Binary.data",
    ),
    "zero for a positive integer": (
        {"resourceType": "Patient", "telecom": [{"system": "phone", "rank": 0}]},
        "value",
        "Value_Format",
        "Patient.telecom[0].rank",
    ),
    "an integer above 32 bits": (
        observation(valueInteger=2**31),
        "value",
        "Value_Format",
        "Observation.value.ofType(integer)",
    ),
    "a contained resource with an error": (
        observation(contained=[PATIENT | {"gender": "f"}], subject={"reference": "#p1"}),
        "code-invalid",
        "Value_Code",
        "Observation.contained[0].ofType(Patient).gender",
    ),
    "an entry with an error": (
        bundle(OBSERVATION, PATIENT | {"name": [{"use": "nick"}]}),
        "code-invalid",
        "Value_Code",
        "Bundle.entry[1].resource.ofType(Patient).name[0].use",
    ),
    "an entry without resourceType": (
        bundle(OBSERVATION) | {"entry": [{"resource": {"id": "x"}}]},
        "structure",
        "Structure_Not_A_Resource",
        "Bundle.entry[0].resource",
    ),
    "an entry that is text": (
        bundle() | {"entry": [{"resource": "x"}]},
        "structure",
        "Structure_Not_A_Resource",
        "Bundle.entry[0].resource",
    ),
    "a resource type that R4 does not have": (
        {"resourceType": "Pateint"},
        "structure",
        "Structure_Not_A_Resource",
        "Resource",
    ),
    "an abstract type": ({"resourceType": "DomainResource"}, "structure", "Structure_Not_A_Resource", "Resource"),
}


@pytest.mark.parametrize(("resource", "code", "name", "expression"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_resource_has_this_finding_and_no_other(resource: Json, code: str, name: str, expression: str) -> None:
    assert findings(resource) == [(ERROR, code, name, expression)]


def test_every_entry_of_a_bundle_is_checked() -> None:
    broken = [PATIENT | {"gender": "x"} for _ in range(3)]
    found = [each[3] for each in findings(bundle(*broken))]
    assert found == [f"Bundle.entry[{number}].resource.ofType(Patient).gender" for number in range(3)]


def test_all_findings_of_a_resource_are_reported_in_the_order_of_the_document() -> None:
    resource = {"resourceType": "Patient", "birthDate": "x", "gender": "y", "shoe": 1, "active": "no"}
    assert [each[3] for each in findings(resource)] == [
        "Patient.birthDate",
        "Patient.gender",
        "Patient.shoe",
        "Patient.active",
    ]


def test_the_diagnostics_quote_what_was_found_as_real_validators_do() -> None:
    (found,) = (each for each in issues(PATIENT | {"gender": "f"}) if each["severity"] == "error")
    assert found["diagnostics"] == "Patient.gender: 'f' is not one of female, male, other, unknown"
    assert found["details"]["text"] == "The code is not in the required list."


def test_what_is_nested_beyond_reason_is_said_not_to_be_looked_at() -> None:
    extension: Json = {"url": "http://x.org", "valueCode": "x"}
    for _ in range(150):
        extension = {"url": "http://x.org", "extension": [extension]}
    (found,) = findings(PATIENT | {"extension": [extension]})
    assert found[:3] == ("error", "too-long", "Structure_Too_Deep")


NAMES = st.sampled_from(
    ["resourceType", "id", "entry", "resource", "contained", "extension", "name", "_name", "value", "meta", "subject"]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["Patient", "Bundle", "#a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(st.sampled_from(["Patient", "Bundle", "Observation", "Parameters"]), st.dictionaries(NAMES, ANYTHING))
def test_whatever_stands_in_a_resource_there_is_an_answer(kind: str, content: Json) -> None:
    assert issues(content | {"resourceType": kind})[-1]["details"]["coding"][0]["code"] == "Not_Checked"


def reordered(draw: st.DrawFn, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(draw, value[key]) for key in draw(st.permutations(list(value)))}
    if isinstance(value, list):
        return [reordered(draw, each) for each in value]
    return value


@st.composite
def valid_in_another_order(draw: st.DrawFn) -> Any:
    return reordered(draw, draw(st.sampled_from(list(VALID.values()))))


@settings(max_examples=examples(60), deadline=None)
@given(valid_in_another_order())
def test_valid_resources_stay_valid_when_their_keys_are_reordered(resource: Json) -> None:
    assert findings(resource) == []
