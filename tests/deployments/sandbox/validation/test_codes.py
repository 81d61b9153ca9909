"""The codes of every required binding of R4 with a list in the specification are checked, also for concepts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from deployments.sandbox.common.definitions.schema import DEFINITIONS, load_schema
from tests.deployments.sandbox.validation.support import findings, issues

Json = dict[str, Any]
SUBJECT = {"reference": "Patient/p1"}
CLINICAL = "http://terminology.hl7.org/CodeSystem/condition-clinical"
LISTS = msgspec.json.decode((DEFINITIONS / "codes.json").read_bytes())


def test_each_required_binding_has_its_codes_or_is_named_as_one_without() -> None:
    checked = {
        f"{definition.path}.{name}"
        for definition in load_schema().definitions.values()
        for name, found in definition.properties.items()
        if found.codes is not None or found.concepts is not None
    }
    assert set(LISTS["bindings"]) - checked == set()
    unlisted = {path for paths in LISTS["unlisted"].values() for path in paths}
    assert (len(LISTS["bindings"]), len(unlisted)) == (349, 17)
    assert unlisted.isdisjoint(checked)


def test_where_the_schema_lists_codes_too_they_are_the_same() -> None:
    schema = msgspec.json.decode((DEFINITIONS / "fhir.schema.json").read_bytes())["definitions"]
    compared = 0
    for definition in load_schema().definitions.values():
        for name, body in schema[definition.name]["properties"].items():
            listed = body.get("items", body).get("enum")
            if listed and f"{definition.path}.{name}" in LISTS["bindings"]:
                assert definition.properties[name].codes == set(listed), f"{definition.path}.{name}"
                compared += 1
    assert compared == 245


def procedure(**fields: Any) -> Json:
    return {"resourceType": "Procedure", "status": "completed", "subject": SUBJECT} | fields


def condition(**fields: Any) -> Json:
    return {"resourceType": "Condition", "subject": SUBJECT} | fields


WRONG: dict[str, tuple[Json, str]] = {
    "a status that the schema does not list": (procedure(status="finished"), "Procedure.status"),
    "a resource type": ({"resourceType": "GraphDefinition", "name": "X", "status": "draft", "start": "Person2"},
                        "GraphDefinition.start"),
    "a code of another system": (
        condition(clinicalStatus={"coding": [{"system": "http://example.org/s", "code": "active"}]}),
        "Condition.clinicalStatus",
    ),
    "a code without a system": (condition(clinicalStatus={"coding": [{"code": "active"}]}), "Condition.clinicalStatus"),
    "a concept with a text only": (condition(clinicalStatus={"text": "active"}), "Condition.clinicalStatus"),
    "a concept without a code": (
        condition(clinicalStatus={"extension": [{"url": "http://example.org/e", "valueCode": "masked"}]}),
        "Condition.clinicalStatus",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("resource", "place"), WRONG.values(), ids=WRONG)
def test_another_code_is_an_error(resource: Json, place: str) -> None:
    assert ("error", "code-invalid", "Value_Code", place) in findings(resource)


RIGHT: dict[str, Json] = {
    "a status": procedure(),
    "one of two codings": condition(
        clinicalStatus={"coding": [{"system": "http://e.org", "code": "x"}, {"system": CLINICAL, "code": "active"}]}
    ),
    "a media type, of which there is no list": {"resourceType": "Binary", "contentType": "application/x-own"},
}  # fmt: skip


@pytest.mark.parametrize("resource", RIGHT.values(), ids=RIGHT)
def test_a_code_of_the_list_is_no_finding(resource: Json) -> None:
    assert [each for each in findings(resource) if each[1] == "code-invalid"] == []


def test_a_code_that_is_no_text_is_a_finding_like_another_one() -> None:
    coding = {"system": CLINICAL, "code": ["active"]}
    condition = {"resourceType": "Condition", "subject": SUBJECT, "clinicalStatus": {"coding": [coding]}}
    assert {message for _, _, message, _ in findings(condition)} == {"Structure_No_List_Expected", "Value_Code"}


def test_of_a_long_list_a_finding_names_the_beginning() -> None:
    wrong = {"resourceType": "GraphDefinition", "name": "X", "status": "draft", "start": "Person2"}
    (said,) = [each["diagnostics"] for each in issues(wrong) if each["code"] == "code-invalid"]
    assert "Account, ActivityDefinition" in said
    assert "more" in said
    assert len(said) < 1200


def test_every_answer_names_the_value_sets_without_a_list() -> None:
    said = issues({"resourceType": "Patient"})[-1]["diagnostics"]
    assert "required codes of LL379-9, currencies, mimetypes, ucum-units (the specification does not list them)" in said
