"""``POST /fhir/$extract-data``."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

import pytest

from tests.deployments.sandbox.extraction.conftest import (
    AGE,
    EVERYBODY,
    GENDER,
    PATIENTS,
    Client,
    attribute,
    ccdl,
    code,
    context,
    criterion,
    crtdl,
    group,
    parameters,
)

URL = "/fhir/$extract-data"
AT_LEAST = {"type": "quantity-comparator", "comparator": "ge", "value": 1}
CRTDL = base64.b64encode(json.dumps(crtdl()).encode()).decode()


def test_it_is_answered_202_with_an_empty_body_and_the_absolute_status_url(client: Client) -> None:
    answer = client.post(URL, json=parameters(crtdl()))
    assert (answer.status_code, answer.content) == (202, b"")
    location = answer.headers["content-location"]
    base, _, job = location.rpartition("/")
    assert base == f"{client.base_url}/fhir/__status".replace("//fhir", "/fhir")
    assert str(uuid.UUID(job)) == job
    assert client.get(location).status_code in (200, 202)


GOOD = {"name": "crtdl", "valueBase64Binary": CRTDL}


def body(*entries: Any) -> bytes:
    return json.dumps({"resourceType": "Parameters", "parameter": list(entries)}).encode()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "the body is not a Parameters resource"),
        (b"{", "the body is not a Parameters resource"),
        (b'{"resourceType":"Bundle"}', "$.resourceType"),
        (
            b'{"resourceType":"Parameters","parameter":{"name":"x"}}',
            "Expected `array`, got `object`",
        ),
        (body(), "0 found"),
        (body(GOOD, GOOD), "2 found"),
        (body({"name": "crtdl", "valueString": CRTDL}), "with a valueBase64Binary"),
        (body({"name": "crtdl", "valueBase64Binary": "no base64!"}), "Invalid base64"),
        (body({"name": "crtdl", "valueBase64Binary": base64.b64encode(b"{}").decode()}), "cannot be read"),
        (body(GOOD, {"name": "since", "valueDate": "2025-01-01"}), "'since' - at `$.parameter[1].name`"),
        (body(GOOD, {"name": "patient", "valueString": "Patient/1"}), "patient parameter needs a valueString"),
        (body(GOOD, {"name": "patient"}), "patient parameter needs a valueString"),
    ],
)
def test_what_cannot_be_read_is_400_with_a_fatal_invalid_issue(client: Client, content: bytes, text: str) -> None:
    answer = client.post(URL, content=content)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/fhir+json"
    outcome = answer.json()
    assert outcome["resourceType"] == "OperationOutcome"
    assert {(issue["severity"], issue["code"]) for issue in outcome["issue"]} == {("fatal", "invalid")}
    assert any(text in issue["diagnostics"] for issue in outcome["issue"])
    assert client.get("/fhir/Task").json()["total"] == 0


@pytest.mark.slow
def test_a_body_of_2_mib_is_taken_and_a_larger_one_is_413(client: Client) -> None:
    content = json.dumps(parameters(crtdl())).encode()
    limit = 2 * 1024 * 1024
    assert client.post(URL, content=content + b" " * (limit - len(content))).status_code == 202
    answer = client.post(URL, content=content + b" " * (limit + 1 - len(content)))
    assert answer.status_code == 413
    assert answer.json()["resourceType"] == "OperationOutcome"

    def pieces() -> Any:
        yield from [b" " * 100_000] * 22

    assert client.post(URL, content=pieces()).status_code == 413  # without a Content-Length
    large = client.post(URL, content=b" " * 30_000_000)  # sent to its end, so that the answer is read
    assert large.status_code == 413
    assert client.post("/fhir/$evaluate-cohort", content=b" " * (limit + 1)).status_code == 413


def dated(**limits: str) -> dict[str, Any]:
    return {"type": "date", "name": "recorded-date", **limits}


CONDITION = attribute("Condition.code")
TOKEN = {"type": "token", "name": "colour", "codes": [code("s", "x")]}
BAD = {
    "no version": ({key: value for key, value in crtdl().items() if key != "version"}, "version"),
    "no group": (crtdl() | {"dataExtraction": {"attributeGroups": []}}, "$.dataExtraction.attributeGroups"),
    "two Patient groups": (crtdl(PATIENTS, group("p", "Patient", attribute("Patient.id"))), "one Patient group"),
    "one id twice": (crtdl(*[group("g", "Condition", CONDITION)] * 2), "g is used twice"),
    "a link to nothing": (crtdl(group("g", "Condition", attribute("Condition.encounter", "e"))), "does not exist"),
    "a slice": (crtdl(group("g", "Condition", attribute("Condition.code:mine"))), "is a slice"),
    "no element": (crtdl(group("g", "Condition", attribute("Condition"))), "is not an element"),
    "two types": (crtdl(group("g", "Condition", CONDITION, attribute("Procedure.code"))), "not of the group's type"),
    "no type": (crtdl(group("g", "https://example.org/x")), "at least one entry is required"),
    "an unknown filter": (crtdl(group("g", "Condition", CONDITION, filter=[TOKEN])), "known are code, category"),
    "two date filters": (crtdl(group("g", "Condition", CONDITION, filter=[dated(start="2020")] * 2)), "most one date"),
    "dates in disorder": (crtdl(group("g", "Condition", CONDITION, filter=[dated(start="2021", end="2020")])), "date"),
    "only references to Patients": (
        crtdl(group("p", "Patient", attribute("Patient.id"), includeReferenceOnly=True)), "includeReferenceOnly"),
    "an unknown context": (crtdl(cohort=ccdl([criterion("Wetter", GENDER)])), "known are Patient, Diagnose"),
    "an unknown key": (crtdl(cohort=ccdl([EVERYBODY | {"colour": 1}])), "colour"),
    "no display": (crtdl(cohort=ccdl([{"context": context("Fall"), "termCodes": [GENDER]}])), "must be a text"),
    "a gender by number": (crtdl(cohort=ccdl([EVERYBODY | {"valueFilter": AT_LEAST}])), "must be a concept filter"),
    "an age without unit": (
        crtdl(cohort=ccdl([criterion("Patient", AGE, valueFilter=AT_LEAST)])), "one of the units a, mo, wk"),
    "the value of a case": (crtdl(cohort=ccdl([criterion("Fall", GENDER, valueFilter=AT_LEAST)])), "has no value"),
    "an unknown attribute": (
        crtdl(cohort=ccdl([criterion("Fall", GENDER, attributeFilters=[AT_LEAST | {"attributeCode": GENDER}])])),
        "known are serviceType, status, type"),
    "combined consent": (crtdl(cohort=ccdl([criterion("Einwilligung", code("fdpg.consent", "x"))])), "combined"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_query_that_the_server_cannot_do_is_400_with_the_reason(client: Client, name: str) -> None:
    query, text = BAD[name]
    assert any(text in finding for finding in client.findings(query)), client.findings(query)
