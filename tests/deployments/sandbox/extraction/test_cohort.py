"""Cohort evaluation through ``$evaluate-cohort``, over the resources of four patients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from deployments.sandbox.extraction.app import extraction_service
from deployments.sandbox.extraction.engine import ExtractionOptions
from deployments.sandbox.serve import serve_in_thread
from tests.deployments.sandbox.extraction.conftest import (
    AGE,
    EVERYBODY,
    GENDER,
    HOSPITAL,
    ICD,
    LOINC,
    SNOMED,
    TODAY,
    Client,
    ccdl,
    code,
    concept,
    criterion,
    crtdl,
    resource,
    write,
)

Json = dict[str, Any]
ACT = "http://terminology.hl7.org/CodeSystem/v3-ActCode"
DIAGNOSIS = "https://www.medizininformatik-initiative.de/fhir/ext/modul-biobank/StructureDefinition/Diagnose"
HB, BLOOD, DRUG = code(LOINC, "718-7"), code(SNOMED, "119297000"), code("atc", "A")
STAY = {"start": "2025-03-10T23:59:00+01:00", "end": "2025-03-15"}


def measured(key: str, owner: str, measure: Json = HB, **value: Any) -> Json:
    return resource("Observation", key, owner, code={"coding": [measure]}, **value)


def quantity(value: float, unit: str, **more: str) -> Json:
    return {"valueQuantity": {"value": value, "code": unit, **more}}


def specimen(key: str, owner: str, diagnosis: str) -> Json:
    link = {"url": DIAGNOSIS, "valueReference": {"reference": diagnosis}}
    return resource("Specimen", key, owner, type={"coding": [BLOOD]}, extension=[link])


RESOURCES = (
    *HOSPITAL,
    resource("Condition", "c-c", "c", code={"coding": [{"code": "x"}, {"system": ICD, "code": "E11"}]}),
    resource("ServiceRequest", "r-d", "d", code=concept(ICD, "I10.90")),
    measured("o-a", "a", **quantity(10.50, "g/dL")), measured("o-b", "b", **quantity(11, "g/dL")),
    measured("o-c", "c", **quantity(9.0, "g/l")), measured("o-d", "d", **quantity(20, "g/dL", comparator="<")),
    measured("o-e", "d", valueString="20"), measured("o-f", "d", code(LOINC, "other"), **quantity(20, "g/dL")),
    resource("Procedure", "p-a", "a", code={"coding": [HB]}, performedPeriod=STAY),
    resource("Encounter", "e-b", "b", period=STAY, **{"class": code(ACT, "IMP")}),
    resource("Encounter", "e-c", "c", **{"class": code(ACT, "AMB")}),
    resource("MedicationAdministration", "m-a", "a", medicationReference={"reference": "Medication/m"}),
    {"resourceType": "Medication", "id": "m", "code": {"coding": [DRUG]}},
    resource("MedicationRequest", "m-b", "b", medicationCodeableConcept={"coding": [DRUG]}),
    resource("MedicationStatement", "m-c", "c", medicationCodeableConcept={"coding": [DRUG]}),
    specimen("s-a", "a", "Condition/c-a"), specimen("s-b", "b", "Condition/c-b"),
    resource("Specimen", "s-c", "c", type={"coding": [BLOOD]}),
    resource("Consent", "n-d", "d", provision={
        "type": "deny", "provision": [{"type": "permit", "code": [concept("oid", "8")]}],
    }),
)  # fmt: skip


def concepts(*codes: dict[str, str]) -> Json:
    return {"type": "concept", "selectedConcepts": list(codes)}


def compare(comparator: str, value: float, unit: str | None = None) -> Json:
    made = {"type": "quantity-comparator", "comparator": comparator, "value": value}
    return made | ({"unit": {"code": unit}} if unit else {})


def within(low: float, high: float, unit: str | None = None) -> Json:
    made: Json = {"type": "quantity-range", "minValue": low, "maxValue": high}
    return made | ({"unit": {"code": unit}} if unit else {})


def gender(value: str) -> Json:
    known = code("http://hl7.org/fhir/administrative-gender", value)
    return criterion("Patient", GENDER, valueFilter=concepts(known))


def age(value: Json) -> Json:
    return criterion("Patient", AGE, valueFilter=value)


def lab(value: Json) -> Json:
    return criterion("Laboruntersuchung", HB, valueFilter=value)


def of_diagnosis(*codes: dict[str, str], **time: Any) -> Json:
    where = {"type": "reference", "attributeCode": code("x", "festgestellteDiagnose")}
    return criterion(
        "Specimen", BLOOD, attributeFilters=[where | {"criteria": [criterion("Diagnose", *codes, **time)]}]
    )


DIABETES = criterion("Diagnose", code(ICD, "E11.90"))
CRITERIA: list[tuple[Json, str]] = [
    (EVERYBODY, "abc"),  # d has no gender
    (gender("female"), "a"),
    # Age in completed years, months or weeks
    (age(compare("ge", 18, "a")), "abd"),  # d is 18 today
    (age(compare("gt", 18, "a")), "ab"), (age(compare("eq", 45, "a")), "b"),  # b is 46 tomorrow
    (age(compare("lt", 1, "a")), "c"), (age(compare("le", 3, "mo")), "c"),  # c is three months old today
    (age(compare("lt", 3, "mo")), ""), (age(compare("eq", 12, "wk")), "c"), (age(within(45, 75, "a")), "ab"),
    # The code of the context's type, or that of the medication referred to; one of several codes
    (DIABETES, "ad"), (criterion("Diagnose", code(ICD, "E11")), "c"), (criterion("Diagnose", code("x", "E11.90")), ""),
    (criterion("Diagnose", code(ICD, "E11"), code(ICD, "I10.90")), "bc"),
    (criterion("Laboruntersuchung", HB), "abcd"), (criterion("Vitaldaten", HB), "abcd"),
    (criterion("Procedure", HB), "a"), (criterion("Specimen", BLOOD), "abc"),
    (criterion("Medikamentenverabreichung", DRUG), "a"), (criterion("Medikamentenanordnung", DRUG), "b"),
    (criterion("Medikamentenverordnung", DRUG), "c"), (criterion("Fall", code(ACT, "IMP")), "b"),
    (criterion("Einwilligung", code("oid", "8")), "d"),
    # Quantities as decimals, units as codes; never a text, "<", or the value of another code
    (lab(compare("gt", 10.5)), "b"), (lab(compare("ge", 10.5)), "ab"), (lab(compare("lt", 10.5)), "c"),
    (lab(compare("le", 10.50)), "ac"), (lab(compare("eq", 10.5)), "a"), (lab(within(9, 10.5)), "ac"),
    (lab(compare("gt", 1, "g/dL")), "ab"), (lab(compare("gt", 1, "mmol/L")), ""),
    # References that lead to a resource which meets one of the criteria
    (of_diagnosis(code(ICD, "E11.90")), "a"), (of_diagnosis(code(ICD, "E11.90"), code(ICD, "I10.90")), "ab"),
    (of_diagnosis(code(ICD, "E11.90"), timeRestriction={"afterDate": "2025-05-10"}), "a"),
    (of_diagnosis(code(ICD, "E11.90"), timeRestriction={"afterDate": "2025-05-11"}), ""),
]  # fmt: skip
TIMES = [
    ({"afterDate": "2025-03-15"}, True), ({"afterDate": "2025-03-16"}, False), ({"beforeDate": "2025-03-10"}, True),
    ({"beforeDate": "2025-03-09"}, False), ({"afterDate": "2025-03-12", "beforeDate": "2025-03-12"}, True),
    ({"afterDate": "2025-01-01", "beforeDate": "2025-12-31"}, True),
]  # fmt: skip
# Inclusion is an AND of ORs, exclusion an OR of ANDs.
COHORTS: list[tuple[Json, str]] = [
    (ccdl([gender("male"), gender("female")]), "ab"),
    (ccdl([gender("male"), gender("female")], [DIABETES]), "a"),
    (ccdl([EVERYBODY], exclusion=[]), "abc"),
    (ccdl([EVERYBODY], exclusion=[[gender("female"), DIABETES]]), "bc"),
    (ccdl([EVERYBODY], exclusion=[[gender("male"), DIABETES]]), "abc"),
    (ccdl([EVERYBODY], exclusion=[[gender("female"), DIABETES], [gender("male")]]), "c"),
    # Of a CRTDL the cohort alone is used.
    (crtdl(cohort=ccdl([gender("male")])) | {"dataExtraction": "anything", "version": 99}, "b"),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    data = write(tmp_path_factory.mktemp("cohort") / "data", *RESOURCES)
    options = ExtractionOptions(data, clock=lambda: TODAY)
    with serve_in_thread(extraction_service(options)) as served, Client(served.url) as client:
        yield client


def test_the_answer_is_a_list_of_patients_and_no_job_is_created(client: Client) -> None:
    answer = client.post("/fhir/$evaluate-cohort", json=ccdl([gender("male")]))
    assert answer.headers["content-type"] == "application/fhir+json"
    assert answer.json() == {
        "resourceType": "List", "status": "current", "mode": "working",
        "entry": [{"item": {"reference": "Patient/b"}}],
    }  # fmt: skip
    assert client.get("/fhir/Task").json()["total"] == 0


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b"{}", b'{"resourceType":"Parameters"}', b"\xff"])
def test_what_is_neither_crtdl_nor_ccdl_is_400(client: Client, body: bytes) -> None:
    answer = client.post("/fhir/$evaluate-cohort", content=body)
    assert (answer.status_code, answer.json()["issue"][0]["severity"]) == (400, "fatal")


@pytest.mark.parametrize(("wanted", "expected"), CRITERIA)
def test_a_criterion(client: Client, wanted: Json, expected: str) -> None:
    assert client.cohort(ccdl([wanted])) == [*expected]


@pytest.mark.parametrize(("time", "is_met"), TIMES)
@pytest.mark.parametrize(("where", "coded", "owner"), [("Procedure", HB, "a"), ("Fall", code(ACT, "IMP"), "b")])
def test_periods_overlap_both_ends_included(
    client: Client, where: str, coded: dict[str, str], owner: str, time: Json, is_met: bool
) -> None:
    found = client.cohort(ccdl([criterion(where, coded, timeRestriction=time)]))
    assert found == ([owner] if is_met else [])


@pytest.mark.parametrize(("query", "expected"), COHORTS)
def test_inclusion_and_exclusion(client: Client, query: Json, expected: str) -> None:
    assert client.cohort(query) == [*expected]
