"""The rows of a view: clauses of SQL on FHIR v2, paths, constants, and views that are refused (document 3 §5)."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.sandbox.flattening.problem import CollectionValueError, ResourceError
from tests.deployments.sandbox.flattening.support import Json, column, columns, one, refused, rows, text, value, view

ADA: Json = {
    "resourceType": "Patient",
    "id": "ada",
    "active": True,
    "birthDate": "1970-05-30",
    "multipleBirthInteger": 2,
    "name": [{"family": "Berg", "given": ["Ada", "Lea"], "use": "official"}, {"family": "Tal", "given": ["Adi"]}],
    "contact": [
        {"name": {"family": "Ost"}, "telecom": [{"system": "email", "value": "2"}, {"system": "phone", "value": "3"}]},
        {"name": {"family": "West"}, "telecom": [{"system": "phone", "value": "4"}]},
    ],
    "extension": [{"url": "http://e/plain", "valueString": "first"}],
}
CID: Json = {"resourceType": "Patient", "id": "cid"}
ID = {"column": columns("id")}
FAMILY = "name.family"
TELECOM = {"forEach": "telecom", "column": columns("value")}

CLAUSES: dict[str, tuple[list[Json], list[tuple[Any, ...]]]] = {
    "columns of several clauses": ([ID, {"select": [{"column": columns("active")}]}], [("ada", True), ("cid", None)]),
    "a collection": (
        [{"column": [column("given", "name.given", collection=True)]}], [(["Ada", "Lea", "Adi"],), ([],)],
    ),
    "forEach": ([ID, {"forEach": "name", "column": columns("family")}], [("ada", "Berg"), ("ada", "Tal")]),
    "forEachOrNull": (
        [ID, {"forEachOrNull": "name", "column": columns("family")}],
        [("ada", "Berg"), ("ada", "Tal"), ("cid", None)],
    ),
    "forEach in forEach": (
        [{"forEach": "contact", "column": [column("family", "name.family")], "select": [TELECOM]}],
        [("Ost", "2"), ("Ost", "3"), ("West", "4")],
    ),
    "every combination of two": (
        [{"forEach": "name", "column": columns("family")}, {"forEach": "contact", "column": [column("c", FAMILY)]}],
        [("Berg", "Ost"), ("Berg", "West"), ("Tal", "Ost"), ("Tal", "West")],
    ),
    "primitives": (
        [{"forEach": "name.given", "column": [column("given", "$this")]}], [("Ada",), ("Lea",), ("Adi",)],
    ),
    "unionAll": (
        [{"forEach": "contact", "unionAll": [TELECOM, {"column": [column("value", "name.family")]}]}],
        [("2",), ("3",), ("Ost",), ("4",), ("West",)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("select", "expected"), CLAUSES.values(), ids=CLAUSES)
def test_clauses(select: list[Json], expected: list[tuple[Any, ...]]) -> None:
    assert [tuple(row.values()) for row in rows(view(*select), ADA, CID)] == expected


def test_columns_without_a_value_are_left_out_or_null_as_asked() -> None:
    definition = view({"column": columns("id", "active")})
    assert text(definition, CID, nulls=False) == '{"id":"cid"}\n'
    assert text(definition, CID, nulls=True) == '{"id":"cid","active":null}\n'


def test_more_than_one_value_in_a_column_that_is_no_collection_is_an_error() -> None:
    with pytest.raises(CollectionValueError) as caught:
        rows(view({"column": [column("family", "name.family")]}), ADA)
    assert "Berg" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("Patient.id", "ada"),
        ("name[1].family", "Tal"),
        ("name.where(use = 'official').family", "Berg"),
        ("name.exists() and photo.exists()", False),
        ("name.given.join(',')", "Ada,Lea,Adi"),
        ("multipleBirth.ofType(integer) + 1", 3),
        ("deceased.ofType(dateTime)", None),
        ("extension('http://e/plain').value.ofType(string)", "first"),
        ("birthDate < @1970-06-01", True),
        ("getResourceKey()", "Patient/ada"),
    ],
)
def test_paths(path: str, expected: Any) -> None:
    assert value(path, ADA) == expected


def test_a_constant_and_a_condition() -> None:
    constants = [{"name": "use", "valueCode": "official"}, {"name": "yes", "valueBoolean": True}]
    select = {"forEach": "name.where(use = %use)", "column": columns("family")}
    assert rows(view(select, constant=constants, where=[{"path": "active = %yes"}]), ADA, CID) == [{"family": "Berg"}]


@pytest.mark.parametrize("spelled", ["1.50", "1E2", "12345678901234567890.123456789"])
def test_numbers_keep_their_spelling(spelled: str) -> None:
    resource = f'{{"resourceType":"Observation","id":"o","valueQuantity":{{"value":{spelled}}}}}'
    assert text(one("value.ofType(Quantity).value", "Observation"), resource) == f'{{"x":{spelled}}}\n'


def test_a_resource_of_another_type_than_the_views_is_an_error() -> None:
    with pytest.raises(ResourceError):
        rows(view(ID, resource="Observation"), ADA)


REFUSED: dict[str, Json] = {
    "an unknown key of the view": view(ID, publisher="x"),
    "an unknown key of a clause": view(ID | {"forEech": "name"}),
    "no FHIRPath": one("name.where("),
    "an unknown constant": one("id = %nope"),
    "a column twice": view(ID, ID),
    "branches with other columns": view({"unionAll": [ID, {"column": columns("active")}]}),
    "no column": view(),
    "forEach and forEachOrNull": view(ID | {"forEach": "name", "forEachOrNull": "name"}),
    "another resourceType": view(ID) | {"resourceType": "Library"},
}


@pytest.mark.parametrize("definition", REFUSED.values(), ids=REFUSED)
def test_a_view_that_is_wrong_is_refused(definition: Json) -> None:
    assert refused(definition)
