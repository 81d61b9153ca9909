"""Paths that the rules of an anonymization file cover (document 5, section 7i)."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tasks.release_report.measure.spoken import Spoken, is_of_person
from tests.conftest import ROOT

MAIDEN = "Patient.extension(http://hl7.org/fhir/StructureDefinition/patient-mothersMaidenName).valueString"
DEMO = ROOT / "deployments/sandbox/data/anonymization.yaml"


def rules_of(path: Path) -> list[str]:
    return [rule["path"] for rule in yaml.safe_load(path.read_text())["fhirPathRules"]]


@pytest.mark.parametrize(
    ("rule", "path", "said"),
    [
        ("Patient.name", "Patient.name.family", True),
        ("Patient.name", "Patient.nameX", False),
        ("Patient.name", "Practitioner.name.family", False),
        ("Patient", "Patient.gender", True),
        ("Patient.name", "Observation.contained.Patient.name.family", True),
        ("Observation.contained", "Observation.contained.Patient.name.family", True),
        (
            "Patient.identifier.where(type.coding.where(code='MR' or code=')').exists()).value",
            "Patient.identifier.value",
            True,
        ),
        ("Resource.id", "Condition.id", True),
        ("Resource.id", "Condition.code.coding.id", False),
        ("Bundle.entry.fullUrl", "Bundle.entry.fullUrl", True),
        ("nodesByType('Reference').reference", "Condition.subject.reference", True),
        ("nodesByType('Reference').reference", "Condition.subject.display", False),
        ("nodesByType('Reference').reference", "Observation.contained.Specimen.subject.reference", True),
        ("nodesByType('HumanName')", "Patient.contact.name.family", True),
        ("nodesByType('date')", "Patient.birthDate", True),
        ("nodesByType('date')", "Condition.onsetDateTime", False),
        ("nodesByType('dateTime')", "Condition.onsetDateTime", True),
        ("nodesByType('dateTime')", "Encounter.period.start", True),
        ("nodesByType('instant')", "Condition.meta.lastUpdated", True),
        ("Patient.contact.nodesByType('HumanName')", "Patient.name.family", False),
        ("nodesByName('family')", "Patient.name.family", True),
        ("Patient.nodesByName('given') | Patient.telecom", "Patient.telecom.value", True),
        ("Observation.value", "Observation.valueString", True),
        ("Observation.value.ofType(Quantity)", "Observation.valueQuantity.unit", True),
        ("Observation.value as string", "Observation.valueString", True),
        ("Observation.value as string", "Observation.valueQuantity.unit", False),
        ("Patient.extension('http://other.example')", MAIDEN, False),
        ("Patient.extension.where(url='http://other.example')", MAIDEN, False),
        (f"Patient.extension('{MAIDEN.partition('(')[2].partition(')')[0]}')", MAIDEN, True),
        ("Patient.extension", MAIDEN, True),
        ("nodesByType('Extension')", MAIDEN, True),
        ("nodesByType('Extension').value", MAIDEN, True),
        ("nodesByType('BackboneElement')", "Observation.component.code.text", True),
        ("nodesByType('BackboneElement')", "Observation.code.text", False),
        ("Observation.descendants()", "Observation.component.code.text", True),
        ("Observation.component.descendants().ofType(string)", "Observation.component.code.text", True),
        ("Observation.component.descendants()", "Observation.code.text", False),
        ("Observation.children().code", "Observation.component.code.text", True),
        ("Observation.children().code", "Observation.code.text", False),
        ("Patient.name.first()", "Patient.name.family", False),
        ("Patient.name.where(use = 'official'", "Patient.name.family", False),
        ("", "Patient.gender", False),
    ],
)
def test_a_rule_speaks_of_what_it_leads_to_and_of_all_below(rule: str, path: str, said: bool) -> None:
    assert Spoken([rule]).of(path) is said


@pytest.mark.parametrize(
    ("rule", "complete"),
    [
        ("Patient.name", True), ("Patient.nodesByName('given') | Patient.telecom", True), ("Patient.name[0]", False),
        ("Observation.descendants()", True), ("Patient.name.first()", False), ("", False),
        ("Patient.name | Patient.telecom[0]", False), ("Bundle.entry.fullUrl", True),
        ("Bundle.entry.resource.ofType(Patient).name", False),
    ],
)  # fmt: skip
def test_it_is_known_whether_each_rule_could_be_read(rule: str, complete: bool) -> None:
    assert Spoken(["Patient.gender", rule]).complete is complete


def test_the_demo_rules_cover_ids_references_and_dates_but_not_the_extension() -> None:
    spoken = Spoken(rules_of(DEMO))
    for path in ("Condition.id", "Condition.subject.reference", "Condition.recordedDate", "Patient.name.given"):
        assert spoken.of(path), path
    if not any("extension" in rule.lower() for rule in rules_of(DEMO)):
        assert not spoken.of(MAIDEN)
    assert not Spoken(["Resource.id", "nodesByType('HumanName')"]).of(MAIDEN)


@pytest.mark.parametrize(
    ("path", "person"),
    [
        (MAIDEN, True), ("Practitioner.qualification.identifier.value", True), ("Condition.code.text", False),
        ("Observation.contained.Patient.gender", True), ("PractitionerRole.code.text", False),
    ],
)  # fmt: skip
def test_what_is_a_person_s_is_known_by_the_type(path: str, person: bool) -> None:
    assert is_of_person(path) is person
