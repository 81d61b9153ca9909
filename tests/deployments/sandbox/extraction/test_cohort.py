"""Cohort evaluation through ``$evaluate-cohort``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.deployments.sandbox.extraction.conftest import (
    AGE,
    EVERYBODY,
    GENDER,
    ICD,
    LOINC,
    SNOMED,
    Client,
    Start,
    ccdl,
    code,
    concept,
    criterion,
    crtdl,
    patient,
    resource,
    write,
)

ADMINISTRATIVE_GENDER = "http://hl7.org/fhir/administrative-gender"
HB = code(LOINC, "718-7")
DIABETES = code(ICD, "E11.90")


def concepts(*codes: dict[str, str]) -> dict[str, Any]:
    return {"type": "concept", "selectedConcepts": list(codes)}


def compare(comparator: str, value: float, unit: str | None = None) -> dict[str, Any]:
    made = {"type": "quantity-comparator", "comparator": comparator, "value": value}
    return made | ({"unit": {"code": unit}} if unit else {})


def within(low: float, high: float, unit: str | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "quantity-range", "minValue": low, "maxValue": high}
    return made | ({"unit": {"code": unit}} if unit else {})


def gender(value: str) -> dict[str, Any]:
    return criterion("Patient", GENDER, valueFilter=concepts(code(ADMINISTRATIVE_GENDER, value)))


def age(value: dict[str, Any]) -> dict[str, Any]:
    return criterion("Patient", AGE, valueFilter=value)


@pytest.fixture
def client(start: Start, hospital: Path) -> Client:
    return start(hospital)


@pytest.fixture
def found(start: Start, tmp_path: Path) -> Any:
    """Return a function that evaluates a cohort of patients p1, p2, … with the given resources."""

    def evaluate(query: dict[str, Any], *resources: dict[str, Any]) -> list[str]:
        owners = sorted({key for key in ("p1", "p2", "p3") if any(key in json.dumps(item) for item in resources)})
        data = write(tmp_path / "data", *[patient(key) for key in owners], *resources)
        return start(data).cohort(query)

    return evaluate


class TestAnswer:
    def test_it_is_a_list_of_patient_references(self, client: Client) -> None:
        answer = client.post("/fhir/$evaluate-cohort", json=ccdl([gender("male")]))
        assert answer.headers["content-type"] == "application/fhir+json"
        assert answer.json() == {
            "resourceType": "List",
            "status": "current",
            "mode": "working",
            "entry": [{"item": {"reference": "Patient/b"}}],
        }

    def test_of_a_crtdl_only_the_cohort_definition_is_used(self, client: Client) -> None:
        query = crtdl(cohort=ccdl([gender("male")]))
        assert client.cohort(query) == ["b"]
        assert client.cohort(query | {"dataExtraction": "anything", "version": 99}) == ["b"]

    def test_no_job_is_created(self, client: Client) -> None:
        client.cohort(ccdl([EVERYBODY]))
        assert client.get("/fhir/Task").json()["total"] == 0

    @pytest.mark.parametrize("body", [b"", b"no json", b"[]", b"{}", b'{"resourceType":"Parameters"}', b"\xff"])
    def test_what_is_neither_crtdl_nor_ccdl_is_400(self, client: Client, body: bytes) -> None:
        answer = client.post("/fhir/$evaluate-cohort", content=body)
        assert answer.status_code == 400
        assert answer.json()["issue"][0]["severity"] == "fatal"


class TestStructure:
    def test_inclusion_is_an_and_of_ors(self, client: Client) -> None:
        assert client.cohort(ccdl([gender("male"), gender("female")])) == ["a", "b"]
        diabetes = criterion("Diagnose", DIABETES)
        assert client.cohort(ccdl([gender("male"), gender("female")], [diabetes])) == ["a"]

    def test_exclusion_is_an_or_of_ands(self, client: Client) -> None:
        adult, diabetes = age(compare("ge", 18, "a")), criterion("Diagnose", DIABETES)
        everybody = [adult, age(compare("lt", 18, "a"))]
        assert client.cohort(ccdl(everybody)) == ["a", "b", "c", "d"]
        assert client.cohort(ccdl(everybody, exclusion=[[adult, diabetes]])) == ["b", "c"]
        assert client.cohort(ccdl(everybody, exclusion=[[adult, diabetes], [gender("male")]])) == ["c"]
        assert client.cohort(ccdl(everybody, exclusion=[])) == ["a", "b", "c", "d"]


class TestPatient:
    def test_gender(self, client: Client) -> None:
        assert client.cohort(ccdl([gender("female")])) == ["a"]
        assert client.cohort(ccdl([EVERYBODY])) == ["a", "b", "c"]  # d has none

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (compare("ge", 18, "a"), ["a", "b", "d"]),  # d is 18 today
            (compare("gt", 18, "a"), ["a", "b"]),
            (compare("eq", 45, "a"), ["b"]),  # 46 tomorrow
            (compare("lt", 1, "a"), ["c"]),
            (compare("le", 3, "mo"), ["c"]),  # three months today
            (compare("lt", 3, "mo"), []),
            (compare("eq", 12, "wk"), ["c"]),  # 90 days
            (within(45, 75, "a"), ["a", "b"]),
        ],
    )
    def test_age_is_in_completed_years_months_or_weeks(
        self, client: Client, value: dict[str, Any], expected: list[str]
    ) -> None:
        assert client.cohort(ccdl([age(value)])) == expected


class TestCodes:
    @pytest.mark.parametrize(
        ("where", "kind", "field"),
        [
            ("Diagnose", "Condition", "code"),
            ("Laboruntersuchung", "Observation", "code"),
            ("Vitaldaten", "Observation", "code"),
            ("Procedure", "Procedure", "code"),
            ("Medikamentenverabreichung", "MedicationAdministration", "medicationCodeableConcept"),
            ("Medikamentenanordnung", "MedicationRequest", "medicationCodeableConcept"),
            ("Medikamentenverordnung", "MedicationStatement", "medicationCodeableConcept"),
            ("Specimen", "Specimen", "type"),
        ],
    )
    def test_each_context_looks_at_the_code_of_its_type(self, found: Any, where: str, kind: str, field: str) -> None:
        query = ccdl([criterion(where, code("s", "1"), code("s", "2"))])
        mine = resource(kind, "r1", "p1", **{field: concept("s", "2")})
        if field == "medicationCodeableConcept":  # through the Medication, too
            drug = resource("Medication", "m", code=concept("s", "1"))
            given = resource(kind, "r4", "p1", medicationReference={"reference": "Medication/m"})
            assert found(query, drug, given) == ["p1"]
        other_code = resource(kind, "r2", "p2", **{field: concept("s", "3")})
        other_type = resource("ServiceRequest", "r3", "p3", code=concept("s", "1"))
        assert found(query, mine, other_code, other_type) == ["p1"]

    def test_system_and_code_must_both_be_equal_and_codes_below_do_not_count(self, found: Any) -> None:
        resources = [
            resource("Condition", "r1", "p1", code=concept(ICD, "E11.90")),
            resource("Condition", "r2", "p2", code=concept("other", "E11")),
            resource("Condition", "r3", "p3", code={"coding": [{"code": "x"}, {"system": ICD, "code": "E11"}]}),
        ]
        assert found(ccdl([criterion("Diagnose", code(ICD, "E11"))]), *resources) == ["p3"]

    def test_a_case_is_found_by_its_class_a_consent_by_the_codes_of_its_provisions(self, found: Any) -> None:
        act = "http://terminology.hl7.org/CodeSystem/v3-ActCode"
        provision = {"type": "deny", "provision": [{"type": "permit", "code": [concept("oid", "8")]}]}
        resources = [
            resource("Encounter", "r1", "p1", **{"class": {"system": act, "code": "IMP"}}),
            resource("Encounter", "r2", "p2", **{"class": {"system": act, "code": "AMB"}}),
            resource("Consent", "r3", "p3", provision=provision),
        ]
        assert found(ccdl([criterion("Fall", code(act, "IMP"))]), *resources) == ["p1"]
        assert found(ccdl([criterion("Einwilligung", code("oid", "8"))]), *resources) == ["p3"]


class TestValues:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (compare("gt", 10.5), ["p2"]),
            (compare("ge", 10.5), ["p1", "p2"]),
            (compare("lt", 10.5), ["p3"]),
            (compare("le", 10.50), ["p1", "p3"]),
            (compare("eq", 10.5), ["p1"]),
            (within(9, 10.5), ["p1", "p3"]),
            (compare("gt", 1, "g/dL"), ["p1", "p2"]),  # p3 is in another unit
            (compare("gt", 1, "mmol/L"), []),
        ],
    )
    def test_quantities_are_compared_as_decimals_units_as_codes(
        self, found: Any, value: dict[str, Any], expected: list[str]
    ) -> None:
        amounts = {"p1": (10.50, "g/dL"), "p2": (11, "g/dL"), "p3": (9.0, "g/l")}
        resources = [
            resource(
                "Observation", f"r{key}", key, code={"coding": [HB]}, valueQuantity={"value": amount, "code": unit}
            )
            for key, (amount, unit) in amounts.items()
        ]
        assert found(ccdl([criterion("Laboruntersuchung", HB, valueFilter=value)]), *resources) == expected

    def test_the_value_must_be_that_of_the_coded_resource_and_a_number(self, found: Any) -> None:
        quantity = {"value": 20, "code": "g/dL"}
        resources = [
            resource("Observation", "r1", "p1", code={"coding": [HB]}, valueString="20"),
            resource("Observation", "r2", "p2", code=concept(LOINC, "other"), valueQuantity=quantity),
            resource("Observation", "r3", "p3", code={"coding": [HB]}, valueQuantity=quantity | {"comparator": "<"}),
        ]
        query = ccdl([criterion("Laboruntersuchung", HB, valueFilter=compare("gt", 10, "g/dL"))])
        assert found(query, *resources) == []


class TestTime:
    @pytest.mark.parametrize(
        ("time", "expected"),
        [
            ({"afterDate": "2025-03-15"}, True),  # inclusive
            ({"afterDate": "2025-03-16"}, False),
            ({"beforeDate": "2025-03-10"}, True),
            ({"beforeDate": "2025-03-09"}, False),
            ({"afterDate": "2025-03-12", "beforeDate": "2025-03-12"}, True),
            ({"afterDate": "2025-01-01", "beforeDate": "2025-12-31"}, True),
        ],
    )
    @pytest.mark.parametrize(
        ("where", "kind", "field"), [("Procedure", "Procedure", "performedPeriod"), ("Fall", "Encounter", "period")]
    )
    def test_periods_overlap_both_ends_included(
        self, found: Any, where: str, kind: str, field: str, time: dict[str, str], expected: bool
    ) -> None:
        period = {"start": "2025-03-10T23:59:00+01:00", "end": "2025-03-15"}
        place = {"code": concept("s", "1"), "class": code("s", "1"), field: period}
        hit = found(ccdl([criterion(where, code("s", "1"), timeRestriction=time)]), resource(kind, "r", "p1", **place))
        assert hit == (["p1"] if expected else [])


class TestAttributes:
    def test_references_lead_to_resources_that_meet_one_of_the_criteria(self, found: Any) -> None:
        url = "https://www.medizininformatik-initiative.de/fhir/ext/modul-biobank/StructureDefinition/Diagnose"
        blood = concept(SNOMED, "119297000")
        resources = [
            resource("Condition", "c1", "p1", code={"coding": [DIABETES]}, recordedDate="2025-01-01"),
            resource("Condition", "c2", "p2", code=concept(ICD, "I10.90"), recordedDate="2025-01-01"),
            *[
                resource(
                    "Specimen", f"s{n}", f"p{n}", type=blood,
                    extension=[{"url": url, "valueReference": {"reference": f"Condition/c{n}"}}],
                )
                for n in (1, 2)
            ],
            resource("Specimen", "s3", "p3", type=blood),
        ]  # fmt: skip
        for time, expected in (({"afterDate": "2025-01-01"}, ["p1"]), ({"afterDate": "2025-01-02"}, [])):
            diagnosis = criterion("Diagnose", DIABETES, timeRestriction=time)
            where = {"type": "reference", "attributeCode": code("x", "festgestellteDiagnose"), "criteria": [diagnosis]}
            query = ccdl([criterion("Specimen", code(SNOMED, "119297000"), attributeFilters=[where])])
            assert found(query, *resources) == expected
