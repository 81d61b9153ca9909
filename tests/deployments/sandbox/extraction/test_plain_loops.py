"""Cohorts and extractions give the numbers that a plain loop over the NDJSON gives.

Always on the demo data, and on every directory of NDJSON that ``SLUICE_SAMPLE_DATA`` names (separated like ``PATH``).
"""

from __future__ import annotations

import json
import operator
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from deployments.sandbox.data import DATA
from tests.deployments.sandbox.extraction.conftest import (
    AGE,
    GENDER,
    TODAY,
    ExtractionServerClient,
    Start,
    attribute,
    ccdl,
    code,
    criterion,
    crtdl,
    group,
)

DIRECTORIES = [DATA, *(Path(name) for name in os.environ.get("SLUICE_SAMPLE_DATA", "").split(os.pathsep) if name)]
Resource = dict[str, Any]


@dataclass
class HospitalData:
    """A directory, read with only a JSON parser, and a server for it."""

    client: ExtractionServerClient
    resources: list[Resource]

    def of(self, kind: str) -> list[Resource]:
        return [item for item in self.resources if item["resourceType"] == kind]

    def people(self, resources: Iterable[Resource]) -> list[str]:
        known = {item["id"] for item in self.of("Patient")}
        owners = {item.get("subject", {}).get("reference", "").removeprefix("Patient/") for item in resources}
        return sorted(owners & known)


@pytest.fixture(params=DIRECTORIES, ids=lambda path: path.parent.name)
def hospital(request: pytest.FixtureRequest, start: Start) -> HospitalData:
    found: dict[tuple[str, str], Resource] = {}
    for path in sorted(request.param.glob("*.ndjson")):
        for line in path.read_text(encoding="utf-8").splitlines():
            item = json.loads(line, parse_float=Decimal)
            for one in [entry["resource"] for entry in item["entry"]] if item["resourceType"] == "Bundle" else [item]:
                found[one["resourceType"], one["id"]] = one
    return HospitalData(start(request.param, batchsize=7), list(found.values()))


def first(item: Resource, field: str = "code") -> tuple[str, str]:
    coding = item.get(field, {}).get("coding", [{}])[0]
    return coding.get("system", ""), coding.get("code", "")


def frequent(resources: Iterable[Resource], count: int) -> list[tuple[str, str]]:
    return [pair for pair, _ in Counter(first(item) for item in resources).most_common(count) if all(pair)]


def has(item: Resource, pair: tuple[str, str]) -> bool:
    return pair in {(c.get("system"), c.get("code")) for c in item.get("code", {}).get("coding", [])}


def of_gender(gender: str) -> Resource:
    concept = {"type": "concept", "selectedConcepts": [code("http://hl7.org/fhir/administrative-gender", gender)]}
    return criterion("Patient", GENDER, valueFilter=concept)


@pytest.mark.parametrize("gender", ["female", "male"])
def test_gender(hospital: HospitalData, gender: str) -> None:
    expected = sorted(item["id"] for item in hospital.of("Patient") if item.get("gender") == gender)
    assert hospital.client.cohort(ccdl([of_gender(gender)])) == expected


@pytest.mark.parametrize("limit", [1, 18, 40, 65])
def test_age(hospital: HospitalData, limit: int) -> None:
    today = TODAY.date()
    latest = date(today.year - limit, today.month, today.day).isoformat()
    expected = sorted(
        item["id"] for item in hospital.of("Patient") if item.get("birthDate") and item["birthDate"][:10] <= latest
    )
    older = {"type": "quantity-comparator", "comparator": "ge", "value": limit, "unit": {"code": "a"}}
    assert hospital.client.cohort(ccdl([criterion("Patient", AGE, valueFilter=older)])) == expected


def test_diagnoses_with_a_time_restriction(hospital: HospitalData) -> None:
    conditions = hospital.of("Condition")
    dates = sorted(item["recordedDate"][:10] for item in conditions if len(item.get("recordedDate", "")) >= 10)
    after, before = dates[len(dates) // 4], dates[3 * len(dates) // 4]
    for system, value in frequent(conditions, 8):
        expected = hospital.people(
            item
            for item in conditions
            if has(item, (system, value)) and after <= item.get("recordedDate", "")[:10] <= before
        )
        time = {"afterDate": after, "beforeDate": before}
        query = ccdl([criterion("Diagnose", code(system, value), timeRestriction=time)])
        assert hospital.client.cohort(query) == expected


def test_laboratory_values_with_a_unit_with_and_without_men(hospital: HospitalData) -> None:
    measured = [item for item in hospital.of("Observation") if "value" in item.get("valueQuantity", {})]
    men = {item["id"] for item in hospital.of("Patient") if item.get("gender") == "male"}
    for system, value in frequent(measured, 5):
        mine = [item for item in measured if has(item, (system, value))]
        unit = mine[0]["valueQuantity"].get("code") or mine[0]["valueQuantity"]["unit"]
        values = sorted(item["valueQuantity"]["value"] for item in mine)
        middle = values[len(values) // 2]
        for comparator, compare in (("gt", operator.gt), ("ge", operator.ge), ("le", operator.le)):
            expected = hospital.people(
                item
                for item in mine
                if (item["valueQuantity"].get("code") or item["valueQuantity"].get("unit")) == unit
                and "comparator" not in item["valueQuantity"]
                and compare(item["valueQuantity"]["value"], middle)
            )
            where = {"type": "quantity-comparator", "comparator": comparator, "value": 0, "unit": {"code": unit}}
            wanted = [criterion("Laboruntersuchung", code(system, value), valueFilter=where)]
            for left_out, exclusion in ((set[str](), []), (men, [[of_gender("male")]])):
                text = json.dumps(ccdl(wanted, exclusion=exclusion)).replace('"value": 0', f'"value": {middle}')
                answer = hospital.client.post("/fhir/$evaluate-cohort", content=text).json()
                found = [entry["item"]["reference"][8:] for entry in answer.get("entry", ())]
                assert found == [key for key in expected if key not in left_out]


def test_exclusion(hospital: HospitalData) -> None:
    conditions = hospital.of("Condition")
    for system, value in frequent(conditions, 3):
        ill = set(hospital.people(item for item in conditions if has(item, (system, value))))
        gendered = sorted(item["id"] for item in hospital.of("Patient") if item.get("gender"))
        query = ccdl([criterion("Patient", GENDER)], exclusion=[[criterion("Diagnose", code(system, value))]])
        assert hospital.client.cohort(query) == [key for key in gendered if key not in ill]


def test_extraction_of_everything_of_three_types(hospital: HospitalData) -> None:
    kinds = {"Condition": ("code", "recordedDate"), "Observation": ("code", "status"), "Procedure": ("code",)}
    groups = [group(kind, kind, *(attribute(f"{kind}.{name}") for name in names)) for kind, names in kinds.items()]
    result = hospital.client.extract(crtdl(*groups))
    people = {item["id"] for item in hospital.of("Patient") if item.get("gender")}
    expected = {f"Patient/{key}" for key in people} | {
        f"{kind}/{item['id']}"
        for kind in kinds
        for item in hospital.of(kind)
        if item.get("subject", {}).get("reference", "").removeprefix("Patient/") in people
    }
    assert set(result.resources) == expected
    sources = {f"{item['resourceType']}/{item['id']}": item for item in hospital.resources}
    for key, item in result.resources.items():
        for name in kinds.get(item["resourceType"], ()):
            assert item.get(name) == sources[key].get(name)
    counts = Counter(key.partition("/")[0] for key in expected)
    assert {name: result.summary["Resource-Inclusions"][name] for name in kinds} == {
        kind: counts[kind] for kind in kinds
    }


def test_extraction_with_a_must_have_and_linked_cases(hospital: HospitalData) -> None:
    result = hospital.client.extract(
        crtdl(
            group("cond", "Condition", attribute("Condition.code", must=True), attribute("Condition.encounter", "enc")),
            group("enc", "Encounter", attribute("Encounter.class", must=True), includeReferenceOnly=True),
        )
    )
    people = {item["id"] for item in hospital.of("Patient") if item.get("gender")}
    coded = [item for item in hospital.of("Condition") if item.get("code")]
    people &= set(hospital.people(coded))
    coded = [item for item in coded if item.get("subject", {}).get("reference", "")[8:] in people]
    encounters = {
        f"Encounter/{item['id']}": item.get("subject", {}).get("reference", "")
        for item in hospital.of("Encounter")
        if item.get("class")
    }
    linked = {
        item["encounter"]["reference"]
        for item in coded
        if encounters.get(item.get("encounter", {}).get("reference")) == item["subject"]["reference"]
    }
    expected = {f"Patient/{key}" for key in people} | {f"Condition/{item['id']}" for item in coded} | linked
    assert set(result.resources) == expected
    assert len(result.bundles) == result.summary["Num-Final-Patients"] == len(people)
