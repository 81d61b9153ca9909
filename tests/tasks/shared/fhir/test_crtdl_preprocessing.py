"""CRTDL preprocessing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import EnrichmentRule, enrichment_rules
from config.services import CrtdlPreprocessingConfig
from tasks.shared.fhir.crtdl_preprocessing import (
    effective_file,
    enrich,
    findings,
    idle_rules,
    write_effective,
)
from tests.peers.extraction import crtdl

HERE = Path("query.json")
PATIENT = "http://hl7.org/fhir/StructureDefinition/Patient"
CONDITION = "https://example.org/fhir/StructureDefinition/Diagnose"


def rule(reference: str = PATIENT, *attributes: dict[str, Any], create: str | None = None) -> EnrichmentRule:
    return EnrichmentRule.model_validate(
        {
            "group_reference": reference,
            "create_if_not_exists": {"group_name": create} if create else None,
            "attributes_to_add": list(attributes),
        }
    )


def add(ref: str = "Patient.identifier", **more: Any) -> dict[str, Any]:
    return {"attribute_ref": ref} | more


def groups(document: dict[str, Any], *rules: EnrichmentRule) -> list[dict[str, Any]]:
    result = enrich(json.dumps(document).encode(), rules, HERE)
    found: list[dict[str, Any]] = json.loads(result.content)["dataExtraction"]["attributeGroups"]
    return found


def problems(document: dict[str, Any], *rules: EnrichmentRule) -> list[str]:
    return [finding.reference for finding in enrich(json.dumps(document).encode(), rules, HERE).findings]


@pytest.mark.parametrize("must_have", [True, False])
def test_a_new_attribute_is_appended_with_the_rules_must_have(must_have: bool) -> None:
    (group,) = groups(crtdl(), rule(PATIENT, add(must_have=must_have)))
    assert group["attributes"][-1] == {"attributeRef": "Patient.identifier", "mustHave": must_have}
    assert len(group["attributes"]) == 2


def test_must_have_of_a_new_attribute_is_false_by_default() -> None:
    (group,) = groups(crtdl(), rule(PATIENT, add()))
    assert group["attributes"][-1]["mustHave"] is False


@pytest.mark.parametrize(
    ("before", "ruled", "after"), [(False, True, True), (True, False, True), (False, False, False)]
)
def test_must_have_raises_an_existing_attribute_and_never_lowers_it(before: bool, ruled: bool, after: bool) -> None:
    document = crtdl()
    document["dataExtraction"] = json.loads(json.dumps(document["dataExtraction"]))
    document["dataExtraction"]["attributeGroups"][0]["attributes"][0]["mustHave"] = before
    (group,) = groups(document, rule(PATIENT, add("Patient.birthDate", must_have=ruled)))
    assert group["attributes"] == [{"attributeRef": "Patient.birthDate", "mustHave": after}]


def test_the_first_group_with_an_equal_reference_is_the_target() -> None:
    document = crtdl()
    twins = [
        {"id": name, "groupReference": CONDITION, "attributes": [{"attributeRef": "Condition.code", "mustHave": True}]}
        for name in ("a", "b")
    ]
    document["dataExtraction"] = {"attributeGroups": [*document["dataExtraction"]["attributeGroups"], *twins]}
    _, first, second = groups(document, rule(CONDITION, add("Condition.subject")))
    assert len(first["attributes"]) == 2
    assert len(second["attributes"]) == 1


def test_a_missing_group_is_made_with_the_name_and_an_id_from_the_profile_url() -> None:
    made = groups(crtdl(), rule(CONDITION, add("Condition.code"), create="Diagnoses"))[1]
    again = groups(crtdl(), rule(CONDITION, add("Condition.code"), create="Diagnoses"))[1]
    other = groups(crtdl(), rule(CONDITION + "2", add("Condition.code"), create="Diagnoses"))[1]
    assert (made["name"], made["groupReference"]) == ("Diagnoses", CONDITION)
    assert made["id"] == again["id"] != other["id"]


def test_without_permission_to_create_a_warning_names_the_rule_that_did_nothing() -> None:
    rules = [rule(PATIENT, add()), rule(CONDITION, add("Condition.code"))]
    result = enrich(json.dumps(crtdl()).encode(), rules, HERE)
    (warning,) = result.warnings
    assert warning.startswith("enrichment rule 2 did nothing")
    assert CONDITION in warning


def test_linked_groups_are_profiles_resolved_after_all_rules_ran() -> None:
    first = rule(PATIENT, add(linked_groups=[CONDITION]))
    second = rule(CONDITION, add("Condition.code"), create="Diagnoses")
    patient, condition = groups(crtdl(), first, second)
    assert patient["attributes"][-1]["linkedGroups"] == [condition["id"]]


def test_linked_groups_that_are_given_replace_those_of_an_existing_attribute() -> None:
    document = crtdl()
    document["dataExtraction"] = json.loads(json.dumps(document["dataExtraction"]))
    attribute = document["dataExtraction"]["attributeGroups"][0]["attributes"][0]
    attribute["linkedGroups"] = ["g-pat"]
    second = rule(CONDITION, add("Condition.code"), create="Diagnoses")
    kept, _ = groups(document, rule(PATIENT, add("Patient.birthDate")), second)
    assert kept["attributes"][0]["linkedGroups"] == ["g-pat"]
    replaced, made = groups(document, rule(PATIENT, add("Patient.birthDate", linked_groups=[CONDITION])), second)
    assert replaced["attributes"][0]["linkedGroups"] == [made["id"]]


def test_a_linked_group_that_resolves_to_nothing_is_an_error() -> None:
    assert problems(crtdl(), rule(PATIENT, add(linked_groups=[CONDITION]))) == ["enrichment-linked-group"]


def test_a_rule_without_its_group_does_nothing_and_that_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "query.json"
    path.write_text(json.dumps(crtdl()))
    (warning,) = idle_rules(path, [rule(CONDITION, add("Condition.code"))])
    assert warning.startswith("enrichment rule 1 did nothing: ")
    assert idle_rules(path, [rule(CONDITION, add("Condition.code"), create="Diagnoses")]) == ()
    assert idle_rules(tmp_path / "nowhere.json", []) == ()


def test_a_rule_may_make_the_patient_group_that_the_crtdl_lacks() -> None:
    document = crtdl()
    other = {
        "id": "g",
        "groupReference": CONDITION,
        "attributes": [{"attributeRef": "Condition.code", "mustHave": True}],
    }
    document["dataExtraction"] = {"attributeGroups": [other]}
    assert len(groups(document, rule(PATIENT, add(), create="Patients"))) == 2


def test_unknown_keys_and_the_spelling_of_numbers_survive() -> None:
    text = json.dumps(crtdl(extra={"number": "NUMBER"}, more=[1])).replace('"NUMBER"', "1.500")
    text = text.replace('"mustHave": false', '"mustHave": false, "note": 2.50e1')
    result = enrich(text.encode(), [rule(PATIENT, add())], HERE).content.decode()
    assert "1.500" in result
    assert "2.50e1" in result
    expected = json.loads(text)
    expected["dataExtraction"]["attributeGroups"][0]["attributes"].append(
        {"attributeRef": "Patient.identifier", "mustHave": False}
    )
    assert json.loads(result) == expected


@given(st.text(), st.floats(allow_nan=False, allow_infinity=False))
def test_any_text_and_number_survives_enrichment(text: str, number: float) -> None:
    document = crtdl(display=text, number=number)
    content = json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")
    result = json.loads(enrich(content, [rule(PATIENT, add("Patient.birthDate"))], HERE).content)
    assert result == document


def test_without_rules_the_effective_crtdl_is_a_byte_for_byte_copy(tmp_path: Path) -> None:
    source = tmp_path / "query.json"
    content = json.dumps(crtdl(), indent=7).encode() + b"  \r\n"
    source.write_bytes(content)
    path, warnings = write_effective(source, tmp_path, [])
    assert (path, warnings) == (tmp_path / "crtdl.json", ())
    assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o600


def test_with_a_rule_it_is_the_enriched_file_and_the_copy_goes(tmp_path: Path) -> None:
    source = tmp_path / "query.json"
    source.write_text(json.dumps(crtdl()))
    write_effective(source, tmp_path, [])
    path, _ = write_effective(source, tmp_path, [rule(PATIENT, add())])
    assert path == tmp_path / "enriched-crtdl.json" == effective_file(tmp_path)
    assert not (tmp_path / "crtdl.json").exists()


def test_disabled_preprocessing_has_no_rules() -> None:
    config = CrtdlPreprocessingConfig.model_validate({"enrichments": [{"group_reference": PATIENT}]})
    assert enrichment_rules(config) == ()


def test_the_external_file_means_the_same_as_the_inline_form(tmp_path: Path) -> None:
    external = tmp_path / "rules.json"
    entries = [
        {"groupReference": PATIENT, "attributesToAdd": [{"attributeRef": "Patient.identifier", "mustHave": True}]},
        {
            "groupReference": CONDITION,
            "addGroupIfNotExists": True,
            "attributesToAdd": [{"attributeRef": "Condition.code"}],
        },
    ]
    external.write_text(json.dumps(entries))
    config = CrtdlPreprocessingConfig.model_validate({"enabled": True, "enrichments_path": str(external)})
    inline = [rule(PATIENT, add(must_have=True)), rule(CONDITION, add("Condition.code"), create="Diagnose")]
    assert groups(crtdl(), *enrichment_rules(config)) == groups(crtdl(), *inline)


def test_findings_are_those_of_what_the_rules_make_of_the_file(tmp_path: Path) -> None:
    source = tmp_path / "query.json"
    source.write_text(json.dumps(crtdl()))
    assert findings(source) == []
    bad = [rule(PATIENT, add(linked_groups=["https://a", "https://b"]))]
    assert [finding.reference for finding in findings(source, bad)] == ["enrichment-linked-group"] * 2
    assert [finding.reference for finding in findings(tmp_path / "nowhere")] == ["crtdl-unreadable"]


def test_half_a_surrogate_pair_is_an_error_and_no_defect(tmp_path: Path) -> None:
    source = tmp_path / "query.json"
    source.write_text(json.dumps(crtdl()).replace('"g-pat"', '"g-\\ud800"'))
    assert [f.reference for f in findings(source, [rule(PATIENT, add(linked_groups=[PATIENT]))])] == ["crtdl-not-json"]
