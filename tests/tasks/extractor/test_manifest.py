"""The result of an extraction: both shapes, and what may be shown of it (document 1, procedure 5; document 2)."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.extractor.manifest import ExtractionResult, details, parse_result
from tasks.shared.errors import ServiceError
from tasks.shared.fhir.crtdl import Crtdl
from tasks.shared.fhir.crtdl_model import Attribute, AttributeGroup
from tasks.shared.http.answer import Answer

STATUS = "https://torch.example/fhir/__status/x"


def parsed(document: Any) -> ExtractionResult:
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    return parse_result(Answer(200, httpx.Headers(), content), STATUS)


def test_a_manifest_gives_the_output_urls_in_order() -> None:
    outputs = [{"type": "NDJSON Bundle", "url": "https://h/b.ndjson"}, {"type": "x", "url": "/core.ndjson"}]
    result = parsed({"transactionTime": "now", "requiresAccessToken": True, "output": outputs, "error": []})
    assert result.urls == ("https://h/b.ndjson", "/core.ndjson")
    assert result.requires_access_token
    assert result.errors == 0


@pytest.mark.parametrize("key", ["valueUrl", "valueUri", "valueString"])
def test_a_parameters_resource_gives_the_url_parts_of_its_outputs(key: str) -> None:
    outputs = [
        {"name": "output", "part": [{"name": "type", "valueCode": "x"}, {"name": "url", key: f"https://h/{n}.ndjson"}]}
        for n in range(2)
    ]
    result = parsed({"resourceType": "Parameters", "parameter": [{"name": "transactionTime"}, *outputs]})
    assert result.urls == ("https://h/0.ndjson", "https://h/1.ndjson")


@pytest.mark.parametrize(
    "document",
    [
        b"<html>CANARY login</html>",
        b"",
        b"[]",
        b'{"output": [',
        {"resourceType": "OperationOutcome"},
        {"output": {}},
        {"output": [{"type": "x"}]},
        {"output": [{"url": 7}]},
        {"output": ["https://h/x"]},
        {"resourceType": "Parameters", "parameter": [{"name": "output", "part": [{"name": "url"}]}]},
    ],
)
def test_a_200_that_is_no_result_is_an_error(document: Any) -> None:
    with pytest.raises(ServiceError) as caught:
        parsed(document)
    assert (caught.value.reference, caught.value.operation) == ("result-unreadable", "poll")
    assert "CANARY" not in caught.value.render()


def test_errors_are_counted_from_the_list_and_from_the_issues() -> None:
    issues = [{"severity": severity, "msg": "CANARY"} for severity in ("FATAL", "ERROR", "WARNING", "CANARY")]
    extension = {"url": "https://x/extractor-job-issues", "valueObject": issues}
    result = parsed({"output": [], "error": [{"url": "https://h/e"}], "extension": [extension]})
    assert result.errors == 3
    assert result.issues == {"FATAL": 1, "ERROR": 1, "WARNING": 1, "(other)": 1}


SUMMARY = {
    "Num-Cohort-Patients": 10,
    "Num-Final-Patients": 7,
    "Duration-Measurements": {"DIRECT_LOAD": {"medianNanos": 1_500_000_000, "averageNanos": 2}, "CANARY": {}},
    "Patient-Exclusions": {"CONSENT": 2, "DIRECT_LOAD": 1, "CASCADING_DELETE": 0, "CANARY": 3},
    "Resource-Exclusions": {
        "Patients": {"Must-Have": {"Patient.birthDate": 2, "CANARY": 3}, "Consent": 4, "Cascading-Delete": 0},
        "CANARY": {"Must-Have": {}, "Reference-Not-Found": 1},
    },
    "Resource-Inclusions": {"Patients": 7, "CANARY-1": 1, "CANARY-2": 2},
}
CRTDL = Crtdl(groups=(AttributeGroup("g", "Patients", "https://x", (Attribute("Patient.id", must_have=True),)),))


@pytest.mark.parametrize("prefix", ["extractor-", "torch-", "https://x/StructureDefinition/extractor-"])
def test_the_details_are_counts_under_names_that_the_crtdl_has(prefix: str) -> None:
    summary = {"url": f"{prefix}job-diagnostics-summary", "valueUrl": "/r/job-summary.json", "valueObject": SUMMARY}
    found = details(parsed({"output": [], "extension": [summary]}), CRTDL)
    assert found == {
        "cohort_patients": 10,
        "final_patients": 7,
        "patient_exclusions": {"CONSENT": 2, "DIRECT_LOAD": 1, "CASCADING_DELETE": 0},
        "resource_exclusions": {"Patients": {"Must-Have": 5, "Consent": 4}, "(other)": {"Reference-Not-Found": 1}},
        "resource_inclusions": {"Patients": 7, "(other)": 3},
        "median_seconds": {"DIRECT_LOAD": 1.5},
    }
    assert "CANARY" not in json.dumps(found)


def test_reports_are_the_urls_of_the_three_extensions() -> None:
    names = ("job-diagnostics-summary", "resource-exclusions", "patient-exclusions", "job")
    extensions = [{"url": f"https://x/extractor-{name}", "valueUrl": f"/reports/{name}"} for name in names]
    result = parsed({"output": [], "extension": extensions})
    assert result.report_urls == tuple(f"/reports/{name}" for name in names[:3])


def test_without_extensions_there_are_no_details() -> None:
    assert details(parsed({"output": []}), None) == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON, st.sampled_from(["job-issues", "job-diagnostics-summary", "resource-exclusions"]))
def test_whatever_the_extensions_hold_the_import_is_not_disturbed(value: Any, other: Any, name: str) -> None:
    extension = [{"url": f"x/torch-{name}", "valueObject": value, "valueUrl": other}, other]
    result = parsed({"output": [{"url": "https://h/x"}], "extension": extension, "error": other})
    assert result.urls == ("https://h/x",)
    json.dumps(details(result, CRTDL))


@given(st.sampled_from([*SUMMARY]), JSON)
def test_whatever_the_summary_holds_details_are_json(key: str, value: Any) -> None:
    extension = {"url": "torch-job-diagnostics-summary", "valueObject": SUMMARY | {key: value}}
    json.dumps(details(parsed({"output": [], "extension": [extension]}), CRTDL))
