"""The check of a CRTDL: structure, cross-references, dates; all findings at once (document 3 §3)."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.shared.errors import InputError
from tasks.shared.fhir.crtdl import document_findings, doubts, load_crtdl
from tasks.shared.fhir.crtdl_model import type_of
from tasks.shared.fhir.crtdl_preprocessing import findings as crtdl_findings

HERE = Path("query.json")
CODE = {"system": "http://snomed.info/sct", "code": "1", "display": "One"}
CRITERION: dict[str, Any] = {"context": {"system": "fdpg.mii.cds", "code": "Diagnose"}, "termCodes": [CODE]}


def whole() -> dict[str, Any]:
    """Return a CRTDL that uses everything the contract names; no part of it is shared with another."""
    return json.loads(json.dumps(_whole()))  # type: ignore[no-any-return]


def _whole() -> dict[str, Any]:
    return {
        "version": "http://json-schema.org/to-be-done/schema#",
        "display": "",
        "cohortDefinition": {
            "version": "http://to_be_decided.com/draft-1/schema#",
            "inclusionCriteria": [
                [
                    CRITERION
                    | {
                        "valueFilter": {
                            "type": "quantity-comparator",
                            "comparator": "gt",
                            "value": 1.5,
                            "unit": {"code": "mmol/L", "display": "mmol/L"},
                        },
                        "timeRestriction": {"afterDate": "2020-01-01", "beforeDate": "2020-01-01"},
                        "attributeFilters": [
                            {"type": "concept", "attributeCode": CODE, "selectedConcepts": [CODE]},
                            {"type": "reference", "attributeCode": CODE, "criteria": [CRITERION]},
                        ],
                    },
                    CRITERION | {"valueFilter": {"type": "quantity-range", "minValue": 1, "maxValue": 2}},
                ]
            ],
            "exclusionCriteria": [[CRITERION]],
        },
        "dataExtraction": {
            "attributeGroups": [
                {
                    "id": "g-pat",
                    "name": "Patients",
                    "groupReference": "https://example.org/Patient",
                    "attributes": [{"attributeRef": "Patient.birthDate", "mustHave": True}],
                },
                {
                    "id": "g-cond",
                    "groupReference": "https://example.org/Condition",
                    "includeReferenceOnly": False,
                    "attributes": [
                        {"attributeRef": "Condition.encounter", "mustHave": False, "linkedGroups": ["g-pat", "g-cond"]}
                    ],
                    "filter": [
                        {"type": "token", "name": "code", "codes": [CODE]},
                        {"type": "date", "name": "recorded-date", "start": "2020", "end": "2020-05-31"},
                    ],
                    "unknownKey": {"survives": 1},
                },
            ]
        },
    }


def references(document: Any) -> list[str]:
    return [finding.reference for finding in document_findings(document, HERE)]


def changed(*path: str | int, to: Any) -> dict[str, Any]:
    document = copy.deepcopy(whole())
    at: Any = document
    for key in path[:-1]:
        at = at[key]
    if to is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return document


GROUPS = ("dataExtraction", "attributeGroups")
COHORT = "cohortDefinition"
FIRST = (COHORT, "inclusionCriteria", 0, 0)


def test_a_document_that_uses_everything_has_no_finding() -> None:
    assert references(whole()) == []


@pytest.mark.parametrize("version", ["1", "http://json-schema.org/to-be-done/schema#", "https://example.org/v2"])
def test_both_families_of_versions_are_accepted(version: str) -> None:
    assert references(changed("version", to=version)) == []


@pytest.mark.parametrize("version", ["2", "http://to_be_decided.com/draft-2/schema#"])
def test_both_families_of_the_cohorts_version_are_accepted(version: str) -> None:
    assert references(changed(COHORT, "version", to=version)) == []


@pytest.mark.parametrize(
    ("path", "to"), [(("version",), "7"), (("version",), 1), ((COHORT, "version"), "1"), ((COHORT, "version"), "draft")]
)
def test_any_other_version_is_a_finding(path: tuple[str, ...], to: Any) -> None:
    assert references(changed(*path, to=to)) == ["crtdl-version"]


@pytest.mark.parametrize(
    ("path", "to"),
    [
        ((*GROUPS,), []),
        ((*GROUPS,), {}),
        ((*GROUPS,), ...),
        (("dataExtraction",), []),
        (("cohortDefinition",), "x"),
        ((*GROUPS, 1, "id"), ...),
        ((*GROUPS, 1, "id"), " "),
        ((*GROUPS, 1, "groupReference"), ...),
        ((*GROUPS, 1, "attributes", 0), "Condition.code"),
        ((*GROUPS, 1, "attributes", 0, "attributeRef"), ...),
        ((*GROUPS, 1, "attributes", 0, "mustHave"), ...),
        ((*GROUPS, 1, "attributes", 0, "mustHave"), "true"),
        ((*GROUPS, 1, "attributes", 0, "linkedGroups"), "g-pat"),
        ((*GROUPS, 1, "includeReferenceOnly"), "no"),
        ((*GROUPS, 1, "filter"), {}),
        ((*GROUPS, 1, "filter", 0, "type"), "string"),
        ((*GROUPS, 1, "filter", 0, "name"), ...),
        ((*GROUPS, 1, "filter", 0, "codes"), []),
        ((*GROUPS, 1, "filter", 0, "codes", 0, "code"), ...),
        ((*GROUPS, 1, "filter", 1, "start"), "June"),
        ((*GROUPS, 1, "filter", 1, "start"), "2021-02-30"),
        ((*GROUPS, 1, "filter", 0), {"type": "date", "name": "date", "start": "2020-01-01"}),
        ((*GROUPS, 1, "filter", 1), {"type": "date", "name": "date"}),
        ((COHORT, "inclusionCriteria"), ...),
        ((COHORT, "inclusionCriteria"), {}),
        ((COHORT, "inclusionCriteria"), []),
        ((COHORT, "inclusionCriteria", 0), []),
        ((COHORT, "exclusionCriteria", 0), CRITERION),
        ((*FIRST, "termCodes"), []),
        ((*FIRST, "termCodes", 0), "1"),
        ((*FIRST, "context"), ...),
        ((*FIRST, "valueFilter", "type"), "text"),
        ((*FIRST, "valueFilter", "comparator"), "ne"),
        ((*FIRST, "valueFilter", "value"), "1.5"),
        ((*FIRST, "valueFilter", "unit"), "mmol/L"),
        ((*FIRST, "attributeFilters", 0, "attributeCode"), ...),
        ((*FIRST, "attributeFilters", 1, "criteria"), []),
        ((*FIRST, "timeRestriction"), {}),
        ((COHORT, "inclusionCriteria", 0, 1, "valueFilter", "maxValue"), 0.5),
    ],
)
def test_a_wrong_structure_is_a_finding_with_its_key_path(path: tuple[str | int, ...], to: Any) -> None:
    document = changed(*path, to=to)
    findings = document_findings(document, HERE)
    assert [finding.reference for finding in findings] == ["crtdl-schema"]
    place = (findings[0].context or "").partition(" ")[2]
    assert place.startswith(str(path[0]))
    assert findings[0].exit_code == 2


def test_a_group_id_used_twice_is_a_finding() -> None:
    assert references(changed(*GROUPS, 1, "id", to="g-pat")) == ["crtdl-duplicate-group"]


def doubted(document: Any) -> list[str]:
    assert document_findings(document, HERE) == []
    return list(doubts(document))


@pytest.mark.parametrize(
    ("path", "to", "says"),
    [
        (
            (*GROUPS, 1, "attributes"), [],
            "crtdl-no-attributes: dataExtraction.attributeGroups[1].attributes: the group 'g-cond' has no attributes",
        ),
        (
            (*GROUPS, 1, "attributes", 0, "linkedGroups"), ["g-pat", "nobody"],
            "crtdl-linked-group: dataExtraction.attributeGroups[1].attributes[0].linkedGroups: the linked group ",
        ),
        (
            (*GROUPS, 1, "filter", 0, "name"), "recorded-date",
            "crtdl-search-parameter: dataExtraction.attributeGroups[1].filter[0].name: Condition has no token search",
        ),
        (
            (*GROUPS, 1, "filter", 1, "name"), "date",
            "crtdl-search-parameter: dataExtraction.attributeGroups[1].filter[1].name: Condition has no date search",
        ),
        (
            (*FIRST, "termCodes", 0, "display"), ...,
            "crtdl-no-display: cohortDefinition.inclusionCriteria[0][0].termCodes[0]: a code without display",
        ),
        (
            (*FIRST, "attributeFilters", 1, "criteria", 0, "termCodes", 0, "display"), "",
            "crtdl-no-display: cohortDefinition.inclusionCriteria[0][0].attributeFilters[1].criteria[0].termCodes[0]: ",
        ),
    ],
)  # fmt: skip
def test_what_a_deployed_server_refuses_although_its_form_is_right_is_a_warning(
    path: tuple[str | int, ...], to: Any, says: str
) -> None:
    (doubt,) = doubted(changed(*path, to=to))
    assert doubt.startswith(says)


def test_a_document_that_uses_everything_and_one_with_findings_have_no_doubt() -> None:
    assert doubted(whole()) == []
    assert list(doubts(changed(*GROUPS, 1, "attributes", to={}))) == []


def test_filters_of_the_patient_group_are_ignored_by_servers_and_no_doubt() -> None:
    token = {"type": "token", "name": "nothing", "codes": [CODE]}
    assert doubted(changed(*GROUPS, 0, "filter", to=[token])) == []


@pytest.mark.parametrize(
    ("profile", "found"),
    [
        ("http://hl7.org/fhir/StructureDefinition/Patient", []),
        ("https://example.org/StructureDefinition/OurPatients", []),
        ("http://hl7.org/fhir/StructureDefinition/Encounter", ["crtdl-patient-group"]),
    ],
)
def test_a_group_without_attributes_is_of_the_type_that_its_profile_tells(profile: str, found: list[str]) -> None:
    document = changed(*GROUPS, 0, "attributes", to=[])
    document["dataExtraction"]["attributeGroups"][0]["groupReference"] = profile
    assert references(document) == found


@pytest.mark.parametrize(
    ("path", "to"),
    [
        ((*GROUPS, 1, "filter", 1), {"type": "date", "name": "date", "start": "2021-06-30", "end": "2021-06-29"}),
        ((*GROUPS, 1, "filter", 1), {"type": "date", "name": "date", "start": "2021-06", "end": "2021-05-31"}),
        ((*FIRST, "timeRestriction"), {"afterDate": "2021-01-02", "beforeDate": "2021-01-01"}),
    ],
)
def test_a_date_before_its_beginning_is_a_finding(path: tuple[str | int, ...], to: Any) -> None:
    assert references(changed(*path, to=to)) == ["crtdl-date-order"]


def test_exactly_one_patient_group_is_needed() -> None:
    none = changed(*GROUPS, 0, "attributes", 0, "attributeRef", to="Encounter.period")
    two = changed(*GROUPS, 1, "attributes", 0, "attributeRef", to="Patient.gender")
    assert references(none) == references(two) == ["crtdl-patient-group"]
    assert document_findings(none, HERE, whole=False) == []


def test_all_findings_are_told_at_once() -> None:
    document = changed(*GROUPS, 1, "id", to="g-pat")
    document["version"] = "9"
    document[COHORT]["inclusionCriteria"][0][0]["termCodes"] = []
    document["dataExtraction"]["attributeGroups"][1]["filter"][1]["end"] = "1999-01-01"
    assert sorted(references(document)) == [
        "crtdl-date-order", "crtdl-duplicate-group", "crtdl-schema", "crtdl-version",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("document", "reference", "hint"),
    [
        ({"resourceType": "Parameters", "parameter": []}, "crtdl-parameters", "valueBase64Binary"),
        ({"dataExtraction": {}}, "crtdl-keys", "cohortDefinition and dataExtraction"),
        ({"version": "2", "inclusionCriteria": []}, "crtdl-keys", "CCDL"),
        ([], "crtdl-keys", None),
        (7, "crtdl-keys", None),
    ],
)
def test_what_is_no_crtdl_gets_one_finding_with_a_hint(document: Any, reference: str, hint: str | None) -> None:
    (finding,) = document_findings(document, HERE)
    assert finding.reference == reference
    assert hint is None or hint in (finding.hint or "")


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b'{"a":\n  1,\n}', ":3"),
        (b'{"a": "\xff"}', ":1"),
        (b"\xef\xbb\xbf{}", ""),
        (b"", ":1"),
        (b'{"a": NaN}', ""),
        (b"[" * 100_000, ""),
    ],
)
def test_a_file_that_is_no_json_names_its_line(tmp_path: Path, content: bytes, where: str) -> None:
    path = tmp_path / "query.json"
    path.write_bytes(content)
    (finding,) = crtdl_findings(path)
    assert finding.reference == "crtdl-not-json"
    assert finding.context == f"{path}{where}"


def test_a_file_that_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    assert [finding.reference for finding in crtdl_findings(tmp_path / "nowhere")] == ["crtdl-unreadable"]


def test_loading_gives_the_groups(tmp_path: Path) -> None:
    path = tmp_path / "query.json"
    path.write_text(json.dumps(whole()))
    patient, condition = load_crtdl(path).groups
    assert (patient.id, patient.name, patient.resource_type) == ("g-pat", "Patients", "Patient")
    assert patient.attributes[0].must_have
    assert condition.attributes[0].linked_groups == ("g-pat", "g-cond")
    assert not condition.reference_only


def test_loading_what_is_wrong_raises_its_first_finding(tmp_path: Path) -> None:
    path = tmp_path / "query.json"
    path.write_text("{}")
    with pytest.raises(InputError) as caught:
        load_crtdl(path)
    assert caught.value.reference == "crtdl-keys"


@pytest.mark.parametrize(
    "ref", ["Observation.value[x]:valueQuantity.code", "Observation", "Observation:x", "Observation.code"]
)
def test_the_type_of_an_attribute_is_the_first_part_of_its_element_id(ref: str) -> None:
    assert type_of(ref) == "Observation"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
PLACES = [
    ("version",), (COHORT,), (COHORT, "inclusionCriteria"), FIRST, (*FIRST, "valueFilter"), (*GROUPS, 1, "id"),
    (*FIRST, "attributeFilters"), ("dataExtraction",), GROUPS, (*GROUPS, 0), (*GROUPS, 1, "attributes"),
    (*GROUPS, 1, "attributes", 0, "linkedGroups"), (*GROUPS, 1, "filter"), (*GROUPS, 1, "filter", 0, "codes"),
]  # fmt: skip


@given(place=st.sampled_from(PLACES), value=JSON)
def test_whatever_stands_anywhere_gives_findings_and_no_exception(place: tuple[str | int, ...], value: Any) -> None:
    for finding in document_findings(changed(*place, to=value), HERE):
        assert finding.context is not None
        assert finding.context.startswith("query.json")
    json.dumps(list(doubts(changed(*place, to=value))))


@given(JSON)
def test_any_json_document_gives_findings_and_no_exception(document: Any) -> None:
    assert document_findings(document, HERE)
