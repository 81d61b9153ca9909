"""The validation service: what the JSON Schema of R4 finds, where, and what it says that it did not check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from deployments.sandbox.data import DATA
from deployments.sandbox.validation import validation_service
from tests.deployments.sandbox.conftest import SandboxClient

Json = dict[str, Any]
GOOD: Json = {"resourceType": "Observation", "id": "o", "status": "final", "code": {"text": "x"}}
MASKED = {"extension": [{"url": "u", "valueCode": "masked"}]}
FINDINGS: dict[str, tuple[Json, list[tuple[str, str]]]] = {
    "nothing": (GOOD, []),
    "an unknown element": (GOOD | {"colour": 1}, [("Structure_Unknown_Element", "Observation.colour")]),
    "one in a list": (
        GOOD | {"code": {"coding": [{}, {"colour": 1}]}},
        [("Structure_Empty", "Observation.code.coding[0]"),
         ("Structure_Unknown_Element", "Observation.code.coding[1].colour")]),
    "a wrong type": (GOOD | {"code": "x"}, [("Structure_Wrong_Type", "Observation.code")]),
    "a list expected": (GOOD | {"category": {"text": "x"}}, [("Structure_Wrong_Type", "Observation.category")]),
    "null": (GOOD | {"code": None}, [("Structure_Wrong_Type", "Observation.code")]),
    "an empty list": (GOOD | {"category": []}, [("Structure_Empty", "Observation.category")]),
    "a code": (GOOD | {"status": "x"}, [("Value_Code", "Observation.status")]),
    "a format": (GOOD | {"effectiveDateTime": "yesterday"}, [("Value_Format", "Observation.effectiveDateTime")]),
    "a missing element": (
        {"resourceType": "Observation", "status": "final"}, [("Profile_Minimum", "Observation.code")]),
    "a missing primitive": (
        {"resourceType": "Observation", "code": {"text": "x"}}, [("Profile_Minimum", "Observation.status")]),
    "a missing choice": (
        {"resourceType": "MedicationRequest", "status": "active", "intent": "order", "subject": {"display": "x"}},
        [("Profile_Minimum", "MedicationRequest.medicationCodeableConcept")]),
    "a masked primitive": ({"resourceType": "Observation", "_status": MASKED, "code": MASKED}, []),
    "null in a list of primitives": (
        {"resourceType": "Patient", "name": [{"given": ["a", None], "_given": [None, MASKED]}]}, []),
    "a value in a list of primitives": (
        {"resourceType": "Patient", "name": [{"given": [3]}]}, [("Structure_Wrong_Type", "Patient.name[0].given[0]")]),
    "no resource": ({"resourceType": "Colour"}, [("Structure_Not_A_Resource", "Resource")]),
    "a contained resource": (
        GOOD | {"contained": [{"resourceType": "Patient", "active": 1}]},
        [("Structure_Wrong_Type", "Observation.contained[0].ofType(Patient).active")]),
    "entries of a Bundle": (
        {"resourceType": "Bundle", "type": "batch", "entry": [{"resource": GOOD}, {"resource": GOOD | {"x": 1}}]},
        [("Structure_Unknown_Element", "Bundle.entry[1].resource.ofType(Observation).x")]),
}  # fmt: skip


@pytest.fixture
def service(serve: Callable[..., SandboxClient]) -> SandboxClient:
    return serve(validation_service())


@pytest.mark.parametrize("name", FINDINGS)
def test_findings_with_their_places(service: SandboxClient, name: str) -> None:
    resource, expected = FINDINGS[name]
    answer = service.post("/validateResource", json=resource)
    assert answer.status_code == 200
    *issues, last = answer.json()["issue"]
    errors = [issue for issue in issues if issue["severity"] == "error"]
    assert [(one["details"]["coding"][0]["code"], one["expression"][0]) for one in errors] == expected
    assert (last["severity"], "Not checked: profiles, terminology" in last["diagnostics"]) == ("information", True)
    if not expected:
        assert issues[0]["details"]["coding"][0]["code"] == "All_OK"


def test_the_demo_data_have_no_finding(service: SandboxClient) -> None:
    for path in DATA.glob("*.ndjson"):
        for line in path.read_bytes().splitlines():
            answer = service.post("/validateResource", content=line)
            assert {issue["severity"] for issue in answer.json()["issue"]} == {"information"}, answer.text


@pytest.mark.parametrize(
    ("body", "kind", "status"), [(b"{", "", 400), (b"[]", "", 400), (b"{}", "", 400), (b"{}", "text/plain", 415)]
)
def test_what_is_no_resource_in_json_is_refused(service: SandboxClient, body: bytes, kind: str, status: int) -> None:
    answer = service.post("/validateResource", content=body, headers={"content-type": kind} if kind else {})
    assert (answer.status_code, answer.json()["resourceType"]) == (status, "OperationOutcome")
