"""Comparison of a job's query with ours (document 2, "extractor-job"): same, different, or unknown."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.extractor.query import read_patients, same_query
from tasks.shared.errors import InputError

QUERY: dict[str, Any] = {
    "version": "1",
    "display": "x",
    "cohortDefinition": {"version": "2", "inclusionCriteria": [[{"value": 1.0}]]},
    "dataExtraction": {
        "attributeGroups": [
            {
                "id": "p",
                "groupReference": "https://x/Patient",
                "attributes": [{"attributeRef": "Patient.identifier", "mustHave": True}],
            },
            {
                "id": "c",
                "name": "Diagnoses",
                "groupReference": "https://x/Condition",
                "attributes": [
                    {"attributeRef": "Condition.code", "mustHave": False},
                    {"attributeRef": "Condition.subject", "mustHave": False, "linkedGroups": ["p"]},
                ],
                "filter": [
                    {
                        "type": "token",
                        "name": "code",
                        "codes": [{"system": "s", "code": "b", "display": "B"}, {"system": "s", "code": "a"}],
                    },
                    {"type": "date", "name": "recorded-date", "start": "2020-01-01"},
                ],
            },
        ]
    },
}
Change = Callable[[dict[str, Any]], object]


def annotated(query: dict[str, Any] = QUERY) -> dict[str, Any]:
    """As TORCH writes it: paths, nulls, attributes of its own, and neither version nor display."""
    document = copy.deepcopy(query)
    groups = document["dataExtraction"]["attributeGroups"]
    for group, kind in zip(groups, ("Patient", "Condition"), strict=True):
        group["resourceType"] = kind
        group["includeReferenceOnly"] = False
        group.setdefault("name", "")
        group["attributes"] += [
            {"attributeRef": f"{kind}.{name}", "mustHave": False} for name in ("id", "meta.profile")
        ]
        for attribute in group["attributes"]:
            attribute["fhirPath"] = attribute["attributeRef"]
            attribute.setdefault("linkedGroups", [])
        group["filter"] = [
            {"type": None, "name": None, "codes": [], "start": None, "end": None} | one
            for one in reversed(group.get("filter", []))
        ]
    return {
        "cohortDefinition": document["cohortDefinition"],
        "dataExtraction": document["dataExtraction"],
        "consentCodes": None,
    }


def compared(theirs: Any, patients: list[str] | None = None, *, key: str = "patient") -> bool | None:
    job = {"id": "x", "status": "COMPLETED", "parameters": {"crtdl": theirs, key: patients or []}}
    return same_query(job, json.dumps(QUERY).encode(), ())


def changed(document: dict[str, Any], change: Change) -> dict[str, Any]:
    found = copy.deepcopy(document)
    change(found)
    return found


def groups(document: dict[str, Any]) -> Any:
    return document["dataExtraction"]["attributeGroups"]


def test_the_same_document_is_the_same_question_however_it_is_written() -> None:
    assert compared(QUERY) is True
    assert compared(dict(reversed(QUERY.items())) | {"exclusions": None}) is True


def test_a_document_with_paths_and_attributes_added_by_the_server_is_the_same_query() -> None:
    assert compared(annotated(), key="paramBatch") is True


def test_a_reference_to_the_patient_may_be_widened_by_the_server() -> None:
    document = annotated()
    groups(document)[1]["attributes"][1].update(mustHave=True, linkedGroups=["p", "q"])
    assert compared(document) is True


def test_other_patients_are_another_question() -> None:
    assert compared(QUERY, ["p1"]) is False
    job = {"parameters": {"crtdl": QUERY, "paramBatch": ["b", "a"]}}
    assert same_query(job, json.dumps(QUERY).encode(), ("a", "b")) is True


@pytest.mark.parametrize("document", [QUERY, annotated()])
@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["cohortDefinition"].update(exclusionCriteria=[[]]),
        lambda document: groups(document).pop(),
        lambda document: groups(document)[0].update(id="q"),
    ],
)
def test_another_cohort_or_other_groups_are_another_question(document: dict[str, Any], change: Change) -> None:
    assert compared(changed(document, change)) is False


@pytest.mark.parametrize(
    "change",
    [
        lambda document: groups(document)[0]["attributes"][0].update(mustHave=False),
        lambda document: groups(document)[1]["attributes"].pop(0),
        lambda document: groups(document)[1]["attributes"].append({"attributeRef": "Condition.note", "fhirPath": "x"}),
        lambda document: groups(document)[0]["attributes"].append({"attributeRef": "Patient.name", "fhirPath": "x"}),
        lambda document: groups(document)[1]["attributes"][1].update(linkedGroups=[]),
        lambda document: groups(document)[1]["filter"].pop(),
        lambda document: groups(document)[1]["filter"][0].update(end="2021-01-01"),
        lambda document: groups(document)[0].update(groupReference="https://x/Other"),
        lambda document: groups(document)[0].update(includeReferenceOnly=True),
    ],
)
@pytest.mark.parametrize("document", [QUERY, annotated()])
def test_any_other_difference_is_never_taken_for_the_same(document: dict[str, Any], change: Change) -> None:
    assert compared(changed(document, change)) is None


@pytest.mark.parametrize(
    "job",
    [
        None,
        {},
        {"parameters": {}},
        {"parameters": {"crtdl": QUERY}},
        {"parameters": {"crtdl": None, "patient": []}},
        {"parameters": {"crtdl": {"version": "1"}, "patient": []}},
    ],
)
def test_a_job_that_does_not_say_what_it_was_asked_is_not_told(job: Any) -> None:
    assert same_query(job, json.dumps(QUERY).encode(), ()) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(JSON, JSON, st.sampled_from(["cohortDefinition", "dataExtraction"]))
def test_whatever_the_server_writes_it_is_no_exception_and_never_the_same(value: Any, other: Any, key: str) -> None:
    if value == QUERY[key]:
        return
    assert not compared(QUERY | {key: value})
    assert not same_query({"parameters": {"crtdl": value, "patient": other}}, json.dumps(QUERY).encode(), ())


# --patients FILE: one id a line


def patients_in(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "patients.txt"
    path.write_bytes(content)
    return path


def test_one_id_a_line_each_once_in_order(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbfp2\r\n\r\n Patient/p1 \np2\np-3.x"
    assert read_patients(patients_in(tmp_path, content)) == ("p2", "p1", "p-3.x")


def test_lines_that_are_no_ids_are_named_by_number_and_never_quoted(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_patients(patients_in(tmp_path, "p1\nErika Mustermann\nü\n".encode()))
    assert caught.value.reference == "patients-invalid"
    assert "2, 3" in caught.value.message
    assert "Erika" not in caught.value.render()


@pytest.mark.parametrize(("content", "reference"), [(b"\n \n", "patients-empty"), (b"\xff\xfe", "patients-unreadable")])
def test_a_file_without_ids_or_not_utf8_is_an_error(tmp_path: Path, content: bytes, reference: str) -> None:
    with pytest.raises(InputError) as caught:
        read_patients(patients_in(tmp_path, content))
    assert caught.value.reference == reference


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_patients(tmp_path / "nowhere")
