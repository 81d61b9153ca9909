"""The flattening service: rows of views, and 500 with a sentence for what it cannot do, as the deployed service."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from deployments.sandbox.flattening import flattening_service
from tests.deployments.sandbox.conftest import JSON, SandboxClient, diagnostics

Json = dict[str, Any]
TYPE = "https://sql-on-fhir.org/ig/StructureDefinition/ViewDefinition"
PERSON: Json = {
    "resourceType": "Patient", "id": "p", "gender": "female", "birthDate": "1970-05-03",
    "name": [{"family": "A", "given": ["B", "C"]}, {"family": "D"}], "address": [{"city": "Bonn"}],
    "extension": [{"url": "u", "valueDecimal": "DECIMAL"}],
}  # fmt: skip


def columns(*paths: str) -> Json:
    return {"column": [{"name": path.partition(".")[0].strip("$"), "path": path} for path in paths]}


def view(*select: Json, **more: Any) -> Json:
    return {"resourceType": TYPE, "resource": "Patient", "select": list(select)} | more


NAMES = {"forEach": "name", **columns("family")}
ROWS: dict[str, tuple[Json, list[Json]]] = {
    "columns": (view(columns("id", "birthDate")), [{"id": "p", "birthDate": "1970-05-03"}]),
    "no value is no key": (view(columns("id", "maritalStatus.text")), [{"id": "p"}]),
    "a collection": (
        view({"column": [{"name": "given", "path": "name.given", "collection": True}]}), [{"given": ["B", "C"]}]),
    "an element as it is": (view(columns("address")), [{"address": {"city": "Bonn"}}]),
    "forEach": (view(columns("id"), NAMES), [{"id": "p", "family": "A"}, {"id": "p", "family": "D"}]),
    "forEach over nothing": (view(columns("id"), {"forEach": "contact", **columns("gender")}), []),
    "forEachOrNull": (view(columns("id"), {"forEachOrNull": "contact", **columns("gender")}), [{"id": "p"}]),
    "nested": (
        view(NAMES | {"select": [{"forEach": "given", **columns("$this")}]}),
        [{"family": "A", "this": "B"}, {"family": "A", "this": "C"}]),
    "unionAll": (
        view({"unionAll": [{"forEach": "name", "column": [{"name": "x", "path": "family"}]},
                           {"forEach": "address", "column": [{"name": "x", "path": "city"}]}]}),
        [{"x": "A"}, {"x": "D"}, {"x": "Bonn"}]),
    "where": (view(columns("id"), where=[{"path": "gender = 'male'"}]), []),
    "a constant": (
        view(columns("id"), where=[{"path": "gender = %sex"}], constant=[{"name": "sex", "valueCode": "female"}]),
        [{"id": "p"}]),
    "an extension": (
        view({"column": [{"name": "value", "path": "extension('u').value.ofType(decimal)"}]}), [{"value": "DECIMAL"}]),
}  # fmt: skip
WRONG: dict[str, tuple[Json, str]] = {
    "an unknown key": (view(columns("id"), colour=1), "unknown field `colour`"),
    "an unknown key of a column": (view({"column": [{"name": "x", "path": "id", "x": 1}]}), "unknown field `x`"),
    "repeat": (view({"repeat": ["contact"], **columns("id")}), "unknown field `repeat`"),
    "a row index": (view({"column": [{"name": "x", "path": "%rowIndex"}]}), "does not support %rowIndex"),
    "a key": (view({"column": [{"name": "x", "path": "getResourceKey()"}]}), "does not support getResourceKey()"),
    "no FHIRPath": (view({"column": [{"name": "x", "path": "name.("}]}), "cannot be read"),
    "an unknown function": (view({"column": [{"name": "x", "path": "paint()"}]}), "cannot be evaluated"),
    "an unknown constant": (view(columns("id"), where=[{"path": "gender = %x"}]), "cannot be evaluated"),
    "one name twice": (view(columns("id"), columns("id")), "id is there twice"),
    "other columns in a union": (view({"unionAll": [columns("id"), columns("gender")]}), "different columns"),
    "several values": (view(columns("name.family")), "several values"),
    "a condition that is none": (view(columns("id"), where=[{"path": "gender"}]), "not a Boolean"),
    "a view of another type": (view(columns("id"), resource="Condition"), "not of the view's type"),
    "no view": ({"resourceType": "Patient"}, "viewDefinition"),
}


def run(client: SandboxClient, wanted: Json, *resources: Json, query: str = "?_format=ndjson", **headers: str) -> Any:
    given = [("viewDefinition", wanted), *(("resources", each) for each in resources)]
    document = {"resourceType": "Parameters", "parameter": [{"name": n, "resource": each} for n, each in given]}
    sent = {"content-type": JSON, "accept": "application/x-ndjson"} | headers
    content = json.dumps(document).replace('"DECIMAL"', "1.50")
    return client.post(f"/fhir/ViewDefinition/$run{query}", content=content, headers=sent)


@pytest.fixture
def service(serve: Callable[..., SandboxClient]) -> SandboxClient:
    return serve(flattening_service())


@pytest.mark.parametrize("name", ROWS)
def test_rows(service: SandboxClient, name: str) -> None:
    wanted, expected = ROWS[name]
    answer = run(service, wanted, PERSON)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson"), answer.text
    spelled = [json.loads(line.replace("1.50", '"DECIMAL"')) for line in answer.text.splitlines()]
    assert spelled == expected


@pytest.mark.parametrize("name", WRONG)
def test_what_the_service_cannot_do_is_500_with_a_sentence(service: SandboxClient, name: str) -> None:
    wanted, text = WRONG[name]
    answer = run(service, wanted, PERSON)
    assert (answer.status_code, text in diagnostics(answer)) == (500, True), answer.text


def test_the_head_must_be_exactly_that_of_the_deployed_service(service: SandboxClient) -> None:
    wanted = view(columns("id"))
    assert run(service, wanted, PERSON, query="").status_code == 500
    assert run(service, wanted, PERSON, accept="*/*").status_code == 500
    assert run(service, wanted, PERSON, **{"content-type": "text/plain"}).status_code == 500
    assert run(service, wanted).text == ""
