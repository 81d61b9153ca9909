"""The result of an extraction: both shapes, and what may be shown of it (document 1, procedure 5; document 2)."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.extractor.manifest import ExtractionResult, Output, details, errors_among, left_out, parse_result
from tasks.shared.errors import ServiceError
from tasks.shared.fhir.crtdl import Crtdl
from tasks.shared.fhir.crtdl_model import Attribute, AttributeGroup
from tasks.shared.http.answer import Answer
from tasks.shared.report import StepReport
from tests.peers.extraction import BASE
from tests.peers.services import JOB

STATUS = f"{BASE}/fhir/__status/{JOB}"


def parsed(document: Any) -> ExtractionResult:
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    return parse_result(Answer(200, httpx.Headers({"Content-Type": "application/json"}), content), STATUS, BASE)


def urls(result: ExtractionResult) -> list[str]:
    return [output.url for output in result.outputs]


def test_a_manifest_gives_the_output_urls_in_order() -> None:
    outputs = [{"type": "NDJSON Bundle", "url": "https://h/b.ndjson"}, {"type": "Patient", "url": "/core.ndjson"}]
    result = parsed({"transactionTime": "now", "requiresAccessToken": True, "output": outputs, "error": []})
    assert result.outputs == (Output("https://h/b.ndjson", "Bundle"), Output(f"{BASE}/core.ndjson", "Patient"))
    assert result.requires_access_token
    assert result.listed_errors == ()


@pytest.mark.parametrize("key", ["valueUrl", "valueUri", "valueString"])
def test_a_parameters_resource_gives_the_url_parts_of_its_outputs(key: str) -> None:
    outputs = [
        {"name": "output", "part": [{"name": "type", "valueCode": "x"}, {"name": "url", key: f"https://h/{n}.ndjson"}]}
        for n in range(2)
    ]
    result = parsed({"resourceType": "Parameters", "parameter": [{"name": "transactionTime"}, *outputs]})
    assert urls(result) == ["https://h/0.ndjson", "https://h/1.ndjson"]


@pytest.mark.parametrize(
    "document",
    [
        {"output": [{"url": "/x"}, {"url": "https://torch.example:443/x#y"}]},
        {"output": [{"url": "https://h/a\nb"}]},
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
    assert result.listed_errors == ("https://h/e",)
    assert errors_among(issues) == {"fatal": 1, "error": 1}
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
        "patient_exclusions": {"CONSENT": 2, "DIRECT_LOAD": 1, "CASCADING_DELETE": 0, "(other)": 3},
        "resource_exclusions": {"Patients": {"Must-Have": 5, "Consent": 4}, "(other)": {"Reference-Not-Found": 1}},
        "resource_inclusions": {"Patients": 7, "(other)": 3},
        "median_seconds": {"DIRECT_LOAD": 1.5},
    }
    assert "CANARY" not in json.dumps(found)


DEPLOYED = {
    "Num-Cohort-Patients": 100,
    "Num-Final-Patients": 60,
    "Cohort-Query-Duration-Ms": 1250,
    "Duration-Measurements": {
        "CONSENT": {"medianMs": 1500, "averageMs": 2},
        "COPY_REDACT": {"medianMs": 20.25},
        "CANARY": {"medianMs": 500},
    },
    "Patient-Exclusions": {"CONSENT_FETCH": 30, "DIRECT_LOAD": 2, "CANARY-1": 7, "CANARY-2": 1},
    "Resource-Exclusions": {"Patients": {"CONSENT": 40, "MUST_HAVE": 6, "CANARY": 3, "CANARY-3": {"Patient.id": 9}}},
    "CANARY": 5,
}


def test_deployed_spellings_are_known_and_an_unknown_key_is_other_and_never_dropped() -> None:
    """``CONSENT`` for ``CONSENT_FETCH`` and the other way round, keys in ``Ms`` (document 3 §2)."""
    summary = {"url": "torch-job-diagnostics-summary", "valueObject": DEPLOYED}
    result = parsed({"output": [], "extension": [summary]})
    found = details(result, CRTDL)
    assert found["patient_exclusions"] == {"CONSENT": 30, "DIRECT_LOAD": 2, "(other)": 8}
    assert found["resource_exclusions"] == {"Patients": {"Consent": 40, "Must-Have": 6, "(other)": 12}}
    assert found["median_seconds"] == {"CONSENT_FETCH": 1.5, "COPY_REDACT": 0.02, "(other)": 0.5}
    assert (found["cohort_query_seconds"], found["other_diagnostics"]) == (1.25, 1)
    told = left_out(result)
    assert told == {
        "patients CONSENT": 30,
        "patients DIRECT_LOAD": 2,
        "patients (other)": 8,
        "resources Consent": 40,
        "resources Must-Have": 6,
        "resources (other)": 12,
    }
    assert "CANARY" not in json.dumps([found, told])
    line = StepReport(left_out=told).summary()
    assert line.startswith("left out: patients CONSENT 30, patients DIRECT_LOAD 2, ")


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
    assert urls(result) == ["https://h/x"]
    json.dumps(details(result, CRTDL))


@given(st.sampled_from([*SUMMARY]), JSON)
def test_whatever_the_summary_holds_details_are_json(key: str, value: Any) -> None:
    extension = {"url": "torch-job-diagnostics-summary", "valueObject": SUMMARY | {key: value}}
    json.dumps(details(parsed({"output": [], "extension": [extension]}), CRTDL))
