"""Whole requests: the bundled data cell by cell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from deployments.sandbox.data import DATA
from deployments.sandbox.flattening.problem import RequestError, ViewError
from deployments.sandbox.flattening.run import cached_view_compiler, read_request
from tests.deployments.sandbox.flattening.support import Json, column, columns, one, parameters, text, view

VIEW = {"name": "viewDefinition", "resource": one("id")}
PATIENT = {"name": "resources", "resource": {"resourceType": "Patient", "id": "kanarienvogel"}}


def asked_for(*parameter: Any, kind: Any = "Parameters") -> bytes:
    return json.dumps({"resourceType": kind, "parameter": list(parameter)}).encode()


def test_resources_come_in_order_wherever_the_view_stands() -> None:
    other = {"name": "resources", "resource": {"resourceType": "Patient", "id": "2"}}
    request = read_request(asked_for(PATIENT, VIEW, other))
    assert len(request) == 2
    assert [each.data["id"] for each in request.resources()] == ["kanarienvogel", "2"]
    assert json.loads(request.view) == one("id")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
        parameters(one("id"), [b'{"a":' * 5000 + b"1" + b"}" * 5000]),
        asked_for(VIEW, PATIENT)[:-5],
        asked_for(VIEW, kind="Bundle"),
        asked_for(VIEW, kind=7),
        b'{"parameter":[]}',
        b'{"resourceType":"Parameters","parameter":{}}',
        asked_for(),
        asked_for(PATIENT),
        asked_for(VIEW, VIEW, PATIENT),
        asked_for(VIEW, {"name": "resource", "resource": {"resourceType": "Patient"}}),
        asked_for(VIEW, {"name": "resources"}),
        asked_for(VIEW, {"name": "resources", "valueString": "kanarienvogel"}),
        asked_for(VIEW, {"resource": {"resourceType": "Patient", "id": "kanarienvogel"}}),
        asked_for(VIEW, "kanarienvogel"),
    ],
)
def test_what_is_no_such_body_is_an_error_without_data(text: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        read_request(text)
    assert "kanarienvogel" not in caught.value.diagnostics


def demo(kind: str) -> Iterator[Any]:
    """Return the resources of a type in the demo data, with decimals in their original spelling."""
    for path in sorted(DATA.glob("*.ndjson")):
        for line in path.read_text(encoding="utf-8").split("\n"):
            for entry in json.loads(line, parse_float=Decimal)["entry"] if line else []:
                if entry["resource"]["resourceType"] == kind:
                    yield entry["resource"]


def answered(definition: Json, resources: list[Any]) -> list[Json]:
    lines = [json.dumps(each, default=str) for each in resources]
    return [json.loads(line, parse_float=Decimal) for line in text(definition, *lines).split("\n") if line]


def test_the_laboratory_values_of_the_demo_are_those_of_a_plain_loop() -> None:
    resources = list(demo("Observation"))
    expected = []
    for each in resources:
        for coding in each["code"]["coding"]:
            row = {
                "id": each["id"],
                "patient": each["subject"]["reference"],
                "date": each.get("effectiveDateTime"),
                "unit": each.get("valueQuantity", {}).get("unit"),
                "code": coding["code"],
                "display": coding.get("display"),
            }
            expected.append({name: cell for name, cell in row.items() if cell is not None})
    quantity = "value.ofType(Quantity)"
    definition = view(
        {
            "column": [
                column("id"),
                column("patient", "subject.reference"),
                column("date", "effective.ofType(dateTime)"),
                column("unit", f"{quantity}.unit"),
            ]
        },
        {"forEach": "code.coding", "column": columns("code", "display")},
        resource="Observation",
    )
    assert answered(definition, resources) == expected
    assert len(expected) >= 96


def test_the_diagnoses_of_the_demo_are_those_of_a_plain_loop() -> None:
    resources = list(demo("Condition"))
    wanted = "http://fhir.de/CodeSystem/bfarm/icd-10-gm"
    expected = [
        {
            "key": f"Condition/{each['id']}",
            "patient": each["subject"]["reference"],
            "notes": [note["text"] for note in each.get("note", [])],
            "icd": coding["code"],
        }
        for each in resources
        for coding in each["code"]["coding"]
        if coding["system"] == wanted and each["recordedDate"] > "2025"
    ]
    definition = view(
        {
            "column": [
                column("key", "getResourceKey()"),
                column("patient", "subject.getReferenceKey(Patient)"),
                column("notes", "note.text", collection=True),
            ]
        },
        {"forEach": "code.coding.where(system = %icd)", "column": [column("icd", "code")]},
        resource="Condition",
        constant=[{"name": "icd", "valueUri": wanted}],
        where=[{"path": "recordedDate > @2025-01-01"}],
    )
    assert answered(definition, resources) == expected
    assert len(expected) >= 10


def test_a_view_that_comes_again_is_not_compiled_again() -> None:
    views = cached_view_compiler()
    first = json.dumps(one("id")).encode()
    again = views(first)
    assert views(first) is again
    assert views(json.dumps(one("active")).encode()) is not again
    for number in range(40):
        views(json.dumps(one(f"name[{number}].family")).encode())
    assert views(first) is not again
    with pytest.raises(ViewError):
        views(b"{}")
