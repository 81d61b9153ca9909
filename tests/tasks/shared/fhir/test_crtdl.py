"""What the client checks of a CRTDL: JSON, two keys, groups and their ids; all findings at once."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.shared.errors import InputError
from tasks.shared.fhir.crtdl import Attribute, crtdl_in, document_findings, type_of
from tasks.shared.fhir.crtdl_preprocessing import findings as crtdl_findings

HERE = Path("query.json")
WHOLE: dict[str, Any] = {
    "version": "1",
    "cohortDefinition": {"version": "2", "inclusionCriteria": [[]]},
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
                "attributes": [{"attributeRef": "Condition.encounter", "linkedGroups": ["g-pat", "g-cond"]}],
                "filter": [{"type": "token", "name": "code"}],
                "unknownKey": {"survives": 1},
            },
        ]
    },
}
GROUPS = ("dataExtraction", "attributeGroups")


def references(document: Any) -> list[str]:
    return [finding.reference for finding in document_findings(document, HERE)]


def changed(*path: str | int, to: Any) -> dict[str, Any]:
    document = copy.deepcopy(WHOLE)
    at: Any = document
    for key in path[:-1]:
        at = at[key]
    if to is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return document


@pytest.mark.parametrize("cohort", [WHOLE["cohortDefinition"], {}, "anything", None])
def test_the_cohort_is_left_to_the_server(cohort: Any) -> None:
    assert references(changed("cohortDefinition", to=cohort)) == []


@pytest.mark.parametrize(
    ("path", "to"),
    [
        ((*GROUPS,), []),
        ((*GROUPS,), {}),
        ((*GROUPS,), ...),
        (("dataExtraction",), []),
        ((*GROUPS, 1), "group"),
        ((*GROUPS, 1, "id"), ...),
        ((*GROUPS, 1, "id"), " "),
        ((*GROUPS, 1, "groupReference"), ...),
        ((*GROUPS, 1, "name"), 7),
        ((*GROUPS, 1, "attributes"), ...),
        ((*GROUPS, 1, "attributes", 0), "Condition.code"),
        ((*GROUPS, 1, "attributes", 0, "attributeRef"), ...),
    ],
)
def test_a_wrong_structure_is_a_finding_with_its_key_path(path: tuple[str | int, ...], to: Any) -> None:
    findings = document_findings(changed(*path, to=to), HERE)
    assert [finding.reference for finding in findings] == ["crtdl-schema"]
    assert (findings[0].context or "").partition(" ")[2].startswith("dataExtraction.attributeGroups")
    assert findings[0].exit_code == 2


def test_all_findings_are_told_at_once() -> None:
    document = changed(*GROUPS, 1, "id", to="g-pat")
    document["dataExtraction"]["attributeGroups"][1]["attributes"] = None
    assert sorted(references(document)) == ["crtdl-duplicate-group", "crtdl-schema"]


@pytest.mark.parametrize(
    ("document", "reference", "hint"),
    [
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


def test_loading_gives_the_groups_or_raises_the_first_finding(tmp_path: Path) -> None:
    path = tmp_path / "query.json"
    path.write_text(json.dumps(WHOLE))
    patient, condition = crtdl_in(path.read_bytes(), path)
    assert (patient.id, patient.name, patient.resource_type) == ("g-pat", "Patients", "Patient")
    assert patient.attributes == (Attribute("Patient.birthDate", must_have=True),)
    assert condition.attributes[0].must_have is False
    path.write_text("{}")
    with pytest.raises(InputError) as caught:
        crtdl_in(path.read_bytes(), path)
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
    ("dataExtraction",), GROUPS, (*GROUPS, 0), (*GROUPS, 1, "id"), (*GROUPS, 1, "attributes"),
    (*GROUPS, 1, "attributes", 0, "linkedGroups"),
]  # fmt: skip


@given(place=st.sampled_from(PLACES), value=JSON)
def test_whatever_stands_anywhere_gives_findings_and_no_exception(place: tuple[str | int, ...], value: Any) -> None:
    for finding in document_findings(changed(*place, to=value), HERE):
        assert (finding.context or "").startswith("query.json")
