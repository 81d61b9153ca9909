"""Constants of a view: every type of SQL on FHIR v2."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deployments.sandbox.flattening.support import Json, column, one, refused, rows, text, view

TASK: Json = {
    "resourceType": "Task",
    "id": "t",
    "status": "requested",
    "output": [
        {"type": {"text": "oid"}, "valueOid": "urn:oid:1.2"},
        {"type": {"text": "uuid"}, "valueUuid": "urn:uuid:53fefa32-fcbb-4ff8-8a92-55ee120877b7"},
        {"type": {"text": "url"}, "valueUrl": "http://example.org/a"},
        {"type": {"text": "uri"}, "valueUri": "http://example.org/b"},
        {"type": {"text": "canonical"}, "valueCanonical": "http://example.org/c|1"},
        {"type": {"text": "id"}, "valueId": "id-1"},
        {"type": {"text": "code"}, "valueCode": "final"},
        {"type": {"text": "string"}, "valueString": "text"},
        {"type": {"text": "base64Binary"}, "valueBase64Binary": "aGVsbG8K"},
        {"type": {"text": "boolean"}, "valueBoolean": True},
        {"type": {"text": "date"}, "valueDate": "2020-02-29"},
        {"type": {"text": "dateTime"}, "valueDateTime": "2020-02-29T10:00:00+01:00"},
        {"type": {"text": "instant"}, "valueInstant": "2015-02-07T13:28:17.239+02:00"},
        {"type": {"text": "time"}, "valueTime": "18:12:00"},
        {"type": {"text": "decimal"}, "valueDecimal": 1.5},
        {"type": {"text": "integer"}, "valueInteger": -3},
        {"type": {"text": "positiveInt"}, "valuePositiveInt": 1},
        {"type": {"text": "unsignedInt"}, "valueUnsignedInt": 0},
    ],
}
KINDS = [
    ("Oid", "urn:oid:1.2", "urn:oid:1.3"),
    ("Uuid", "urn:uuid:53fefa32-fcbb-4ff8-8a92-55ee120877b7", "urn:uuid:c4669fc3-0d14-4e54-a77f-525f6d4e8385"),
    ("Url", "http://example.org/a", "http://example.org/z"),
    ("Uri", "http://example.org/b", "http://example.org/z"),
    ("Canonical", "http://example.org/c|1", "http://example.org/c"),
    ("Id", "id-1", "id-2"),
    ("Code", "final", "draft"),
    ("String", "text", "Text"),
    ("Base64Binary", "aGVsbG8K", "YnllCg=="),
    ("Boolean", True, False),
    ("Date", "2020-02-29", "2020-03-01"),
    ("DateTime", "2020-02-29T10:00:00+01:00", "2020-02-29T11:00:00+01:00"),
    ("Instant", "2015-02-07T13:28:17.239+02:00", "2015-02-07T13:28:17.240+02:00"),
    ("Time", "18:12:00", "18:12:01"),
    ("Decimal", 1.5, 1.25),
    ("Integer", -3, 3),
    ("PositiveInt", 1, 2),
    ("UnsignedInt", 0, 1),
]


def compared(kind: str, constant: Any) -> Any:
    name = kind[0].lower() + kind[1:]
    path = f"output.where(type.text = '{name}').value.ofType({name}) = %c"
    (row,) = rows(one(path, "Task", constant=[{"name": "c", f"value{kind}": constant}]), TASK)
    return row["x"]


@pytest.mark.parametrize(("kind", "equal", "other"), KINDS, ids=[kind for kind, _, _ in KINDS])
def test_a_constant_is_compared_as_a_value_of_its_type(kind: str, equal: Any, other: Any) -> None:
    assert compared(kind, equal) is True
    assert compared(kind, other) is False


@pytest.mark.parametrize(("kind", "given", "_other"), KINDS, ids=[kind for kind, _, _ in KINDS])
def test_a_constant_as_a_column_is_what_was_given(kind: str, given: Any, _other: Any) -> None:
    (row,) = rows(one("%c", "Task", constant=[{"name": "c", f"value{kind}": given}]), TASK)
    assert row["x"] == given


def test_comparing_nothing_with_a_constant_is_nothing() -> None:
    definition = one("description = %c", "Task", constant=[{"name": "c", "valueString": "x"}])
    assert rows(definition, TASK) == [{"x": None}]


def test_a_decimal_keeps_its_spelling_and_an_integer64_may_be_text() -> None:
    constants = [{"name": "d", "valueDecimal": 0.5}, {"name": "n", "valueInteger64": "9007199254740993"}]
    definition = view({"column": [column("d", "%d"), column("n", "%n")]}, resource="Task", constant=constants)
    assert text(definition, TASK) == '{"d":0.5,"n":9007199254740993}\n'


def test_dates_are_ordered_by_time_not_by_text() -> None:
    observation = {"resourceType": "Observation", "id": "o", "effectiveDateTime": "2020-01-01T00:30:00+02:00"}
    definition = one(
        "effective.ofType(dateTime) < %c",
        "Observation",
        constant=[{"name": "c", "valueDateTime": "2019-12-31T23:00:00Z"}],
    )
    assert rows(definition, observation) == [{"x": True}]


def test_constants_hold_in_every_path_of_the_view() -> None:
    constants: list[Json] = [
        {"name": "official", "valueCode": "official"},
        {"name": "yes", "valueBoolean": True},
        {"name": "zero", "valueInteger": 0},
    ]
    patient = {
        "resourceType": "Patient",
        "active": True,
        "name": [{"use": "usual", "family": "A"}, {"use": "official", "family": "B"}],
    }
    select = {
        "forEach": "name.where(use = %official)",
        "column": [column("family"), column("is", "use = %official")],
        "unionAll": [{"forEachOrNull": "%resource.name[%zero]", "column": [column("first", "family")]}],
    }
    definition = view(select, constant=constants, where=[{"path": "active = %yes"}])
    assert rows(definition, patient) == [{"family": "B", "is": True, "first": "A"}]


def test_the_constants_of_fhirpath_are_known() -> None:
    definition = one("%ucum & '|' & %sct & '|' & %loinc")
    assert rows(definition, {"resourceType": "Patient"}) == [
        {"x": "http://unitsofmeasure.org|http://snomed.info/sct|http://loinc.org"}
    ]


def test_resource_and_context_are_known() -> None:
    patient = {"resourceType": "Patient", "id": "p", "name": [{"family": "A"}]}
    select = {"forEach": "name", "column": [column("id", "%resource.id"), column("family", "%context.family")]}
    assert rows(view(select), patient) == [{"id": "p", "family": "A"}]


@pytest.mark.parametrize("place", ["column", "forEach", "where"])
def test_an_unknown_constant_is_refused(place: str) -> None:
    clause: Json = {"column": [column("x", "%nope" if place == "column" else "id")]}
    if place == "forEach":
        clause["forEach"] = "name.where(use = %nope)"
    more: Json = {"where": [{"path": "id = %nope"}]} if place == "where" else {}
    assert "%nope" in refused(view(clause, constant=[{"name": "other", "valueCode": "x"}], **more))


@pytest.mark.parametrize(
    "constant",
    [
        {"name": "c"},
        {"valueCode": "x"},
        {"name": "c", "valueCode": "x", "valueString": "x"},
        {"name": "c", "valueQuantity": {"value": 1}},
        {"name": "c", "valueInteger": "1"},
        {"name": "c", "valueInteger": 1.5},
        {"name": "c", "valueBoolean": "true"},
        {"name": "c", "valueString": 1},
        {"name": "c", "valuePositiveInt": 0},
        {"name": "c", "valueUnsignedInt": -1},
        {"name": "c", "valueDate": "yesterday"},
        {"name": "c", "valueTime": "late"},
        {"name": "c", "valueInteger64": "many"},
        {"name": "1c", "valueCode": "x"},
        {"name": "a-b", "valueCode": "x"},
        {"name": "rowIndex", "valueInteger": 1},
        {"name": "resource", "valueCode": "x"},
    ],
)
def test_a_constant_that_is_none_is_refused(constant: Json) -> None:
    assert "constant[0]" in refused(one("id", constant=[constant]))


def test_names_of_constants_are_unique() -> None:
    constant = {"name": "c", "valueCode": "x"}
    assert "constant[1]" in refused(one("id", constant=[constant, constant]))
