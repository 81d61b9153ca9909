"""A query that the sandbox cannot support is refused with 400 and the reason, never answered in part."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from deployments.sandbox.data import DEMO_CRTDL
from deployments.sandbox.extraction.query import QueryError, read_query
from tests.deployments.sandbox.extraction.conftest import (
    AGE,
    BASE,
    GENDER,
    SNOMED,
    Start,
    attribute,
    ccdl,
    code,
    criterion,
    crtdl,
    group,
)

CONDITIONS = group("cond", "Condition", attribute("Condition.code", must=True), attribute("Condition.onset[x]"))


def findings(query: Any) -> tuple[str, ...]:
    try:
        read_query(query if isinstance(query, bytes) else json.dumps(query).encode())
    except QueryError as error:
        return error.findings
    return ()


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return a valid query with one value changed or removed (``del``)."""
    query = copy.deepcopy(
        crtdl(
            CONDITIONS | {"filter": [{"type": "token", "name": "code", "codes": [code("s", "1")]}]},
            cohort=ccdl([criterion("Diagnose", code("s", "1"), timeRestriction={"afterDate": "2025-01-01"})]),
        )
    )
    node: Any = query
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in steps:
        node = node[step]
    if value == "del":
        del node[last]
    else:
        node[last] = value
    return query


def test_a_group_without_attributes_is_of_the_type_of_its_base_profile() -> None:
    query = changed("dataExtraction.attributeGroups.1.attributes", [])
    assert findings(query) == ()
    assert read_query(json.dumps(query).encode()).by_id["cond"].type == "Condition"
    query["dataExtraction"]["attributeGroups"][1]["groupReference"] = "https://example.org/Diagnosis"
    (found,) = findings(query)
    assert found.startswith("dataExtraction.attributeGroups[1].attributes: at least one entry is required")


def test_a_good_query_has_no_findings() -> None:
    assert findings(changed("display", "a name")) == ()
    assert findings(changed("version", "http://json-schema.org/to-be-done/schema#")) == ()
    assert findings(changed("cohortDefinition.version", "https://example.org/ccdl/v2")) == ()
    assert findings(DEMO_CRTDL.read_bytes()) == ()


def test_unknown_keys_that_cannot_narrow_the_query_are_ignored() -> None:
    assert findings(changed("comment", "x")) == ()
    assert findings(changed("dataExtraction.attributeGroups.1.note", {"x": 1})) == ()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000])
def test_what_is_no_json_object_is_a_finding(content: bytes) -> None:
    assert findings(content) == ("the query is not a JSON object",)


G = "dataExtraction.attributeGroups"
C = "cohortDefinition.inclusionCriteria.0.0"
CASES: list[tuple[str, Any, str]] = [
    ("version", "del", "version: is missing"),
    ("version", "3", 'version: must be "1", or the URL of a schema'),
    ("cohortDefinition", "del", "cohortDefinition: is missing"),
    ("cohortDefinition.version", "1", 'cohortDefinition.version: must be "2", or the URL'),
    ("cohortDefinition.inclusionCriteria", "del", "inclusionCriteria: is missing"),
    ("cohortDefinition.inclusionCriteria", [], "inclusionCriteria: must have at least 1 entry"),
    ("cohortDefinition.inclusionCriteria", [[]], "inclusionCriteria[0]: must have at least 1 entry"),
    ("cohortDefinition.inclusionCriteria", [{}], "inclusionCriteria[0]: must be a list of criteria"),
    ("cohortDefinition.exclusionCriteria", [[]], "exclusionCriteria[0]: must have at least 1 entry"),
    (f"{C}.context", "del", "[0][0].context: is missing"),
    (f"{C}.context.code", "Bioprobe", "Bioprobe is not supported; known are Patient, Diagnose"),
    (f"{C}.context.system", "x", "context.system: must be fdpg.mii.cds"),
    (f"{C}.termCodes", [], "termCodes: must have at least 1 entry"),
    (f"{C}.termCodes.0.display", "del", "termCodes[0].display: must be a text"),
    (f"{C}.termCodes.0.system", "del", "termCodes[0].system: is missing"),
    (f"{C}.timeRestriction", {}, "timeRestriction: needs afterDate, beforeDate or both"),
    (f"{C}.timeRestriction.afterDate", "01.01.2025", "afterDate: must be a date like 2021-06-30"),
    (f"{C}.timeRestriction.afterDate", "2025-02-30", "afterDate: must be a date like 2021-06-30"),
    (f"{C}.timeRestriction.beforeDate", "2024-12-31", "timeRestriction: beforeDate is before afterDate"),
    (f"{C}.timeRestriction.during", "2024", "during: the sandbox does not support this key"),
    (f"{C}.valueFilter", {"type": "concept", "selectedConcepts": [code("s", "1")]}, "Diagnose has no value to filter"),
    (f"{C}.valueFilters", [], "valueFilters: the sandbox does not support this key"),
    (f"{C}.attributeFilters", [{"type": "concept"}], "attributeCode: is missing"),
    (
        f"{C}.attributeFilters",
        [{"type": "concept", "attributeCode": code("s", "colour"), "selectedConcepts": [code("s", "1")]}],
        "colour is not supported for Condition; known are",
    ),
    (
        f"{C}.attributeFilters",
        [
            {
                "type": "reference",
                "attributeCode": code("s", "severity"),
                "criteria": [criterion("Fall", code("s", "1"))],
            }
        ],
        "severity is no reference",
    ),
    ("dataExtraction", "del", "dataExtraction: is missing"),
    (G, [], "attributeGroups: must have at least 1 entry"),
    (f"{G}.0", "del", "exactly one Patient group is required, 0 found"),
    (f"{G}.1.id", "pat", "attributeGroups[1].id: pat is used twice"),
    (f"{G}.1.id", "del", "attributeGroups[1].id: is missing"),
    (f"{G}.1.groupReference", "del", "attributeGroups[1].groupReference: is missing"),
    (f"{G}.1.groupReference", f"{BASE}Observation", "groupReference: is the profile of another type"),
    (f"{G}.1.attributes.0.mustHave", "del", "attributes[0].mustHave: is missing"),
    (f"{G}.1.attributes.0.attributeRef", "Condition", "Condition is not an element of a resource type"),
    (f"{G}.1.attributes.0.attributeRef", "Diagnosis.code", "Diagnosis.code is not an element of a resource type"),
    (f"{G}.1.attributes.0.attributeRef", "Condition.a b", "Condition.a b is not an element path"),
    (f"{G}.1.attributes.0.attributeRef", "Condition.code.coding:icd10-gm", "is a slice"),
    (f"{G}.1.attributes.0.attributeRef", "Condition.onset[x]:onsetWhenever", "is a slice"),
    (f"{G}.1.attributes.0.attributeRef", "Observation.code", "are of several types: Condition, Observation"),
    (f"{G}.1.attributes.0.linkedGroups", ["nowhere"], "links to the group nowhere, which does not exist"),
    (f"{G}.1.attributes.0.linkedGroups", [7], "linkedGroups[0]: must be text that is not empty"),
    (f"{G}.0.includeReferenceOnly", True, "the Patient group cannot be includeReferenceOnly"),
    (f"{G}.1.includeReferenceOnly", "yes", "includeReferenceOnly: must be true or false"),
    (f"{G}.1.filter.0.name", "colour", "filter[0].name: R4 has no token search parameter colour for Condition"),
    (f"{G}.1.filter.0.name", "onset-date", "R4 has no token search parameter onset-date for Condition"),
    (f"{G}.1.filter.0.type", "string", "filter[0].type: must be one of token, date"),
    (f"{G}.1.filter.0.codes", [], "filter[0].codes: must have at least 1 entry"),
    (f"{G}.1.filter.0.modifier", "not", "modifier: the sandbox does not support this key"),
    (f"{G}.1.filter.0", {"type": "date", "name": "recorded-date"}, "filter[0]: needs start, end or both"),
    (
        f"{G}.1.filter.0",
        {"type": "date", "name": "recorded-date", "start": "2025-01-02", "end": "2025-01-01"},
        "filter[0]: end is before start",
    ),
    (
        f"{G}.1.filter",
        [{"type": "date", "name": name, "start": "2025-01-01"} for name in ("recorded-date", "onset-date")],
        "filter: at most one date filter",
    ),
]


@pytest.mark.parametrize(("path", "value", "expected"), CASES)
def test_each_fault_is_named_with_its_place(path: str, value: Any, expected: str) -> None:
    found = findings(changed(path, value))
    assert any(expected in finding for finding in found), found


PERSON: list[tuple[dict[str, Any], str]] = [
    (criterion("Patient", code(SNOMED, "1")), "the context Patient supports one code"),
    (criterion("Patient", GENDER, AGE), "the context Patient supports one code"),
    (criterion("Patient", GENDER, timeRestriction={"afterDate": "2025-01-01"}), "timeRestriction: is not supported"),
    (criterion("Patient", AGE, valueFilter={"type": "concept", "selectedConcepts": [code("s", "1")]}), "a quantity"),
    (
        criterion("Patient", GENDER, valueFilter={"type": "quantity-comparator", "comparator": "gt", "value": 1}),
        "must be a concept filter",
    ),
    (
        criterion("Patient", AGE, valueFilter={"type": "quantity-comparator", "comparator": "gt", "value": 1}),
        "an age must have one of the units a, mo, wk",
    ),
    (
        criterion(
            "Laboruntersuchung", GENDER, valueFilter={"type": "quantity-comparator", "comparator": "ne", "value": 1}
        ),
        "comparator: must be one of gt, ge, lt, le, eq",
    ),
    (
        criterion(
            "Laboruntersuchung", GENDER, valueFilter={"type": "quantity-comparator", "comparator": "gt", "value": "1"}
        ),
        "value: must be a number",
    ),
    (
        criterion("Laboruntersuchung", GENDER, valueFilter={"type": "quantity-range", "minValue": 2, "maxValue": 1}),
        "valueFilter: maxValue is below minValue",
    ),
    (criterion("Laboruntersuchung", GENDER, valueFilter={"type": "text"}), "type: must be one of concept"),
    (criterion("Einwilligung", code("fdpg.consent.combined", "yes-yes")), "combined consent codes are not supported"),
]


@pytest.mark.parametrize(("wrong", "expected"), PERSON)
def test_each_criterion_that_cannot_be_evaluated_is_named(wrong: dict[str, Any], expected: str) -> None:
    found = findings(crtdl(CONDITIONS, cohort=ccdl([wrong])))
    assert any(expected in finding for finding in found), found
    excluded = findings(crtdl(CONDITIONS, cohort=ccdl([criterion("Patient", GENDER)], exclusion=[[wrong]])))
    assert any("exclusionCriteria[0][0]" in finding and expected in finding for finding in excluded), excluded


def test_criteria_do_not_refer_to_criteria_without_end() -> None:
    inner = criterion("Fall", code("s", "1"))
    for _ in range(30):
        where = {"type": "reference", "attributeCode": code("x", "encounter"), "criteria": [inner]}
        inner = criterion("Diagnose", code("s", "1"), attributeFilters=[where])
    assert any("more than 10 levels deep" in finding for finding in findings(crtdl(CONDITIONS, cohort=ccdl([inner]))))


def test_all_findings_come_in_one_answer(start: Start, hospital: Path) -> None:
    query = changed(f"{C}.context.code", "Nothing")
    query["dataExtraction"]["attributeGroups"][1]["filter"][0]["name"] = "colour"
    query["dataExtraction"]["attributeGroups"][1]["attributes"][0]["linkedGroups"] = ["nowhere"]
    found = start(hospital).findings(query)
    assert len(found) == 3
    assert found[0].startswith("cohortDefinition.inclusionCriteria[0][0].context: ")
    assert found[1].startswith("dataExtraction.attributeGroups[1].filter[0].name: ")
    assert found[2].startswith("dataExtraction.attributeGroups[1]: ")


def test_a_refused_query_makes_no_job(start: Start, hospital: Path) -> None:
    client = start(hospital)
    client.findings(changed("version", "9"))
    assert client.get("/fhir/Task").json()["total"] == 0
