"""Whole views: conditions, and errors that are found before a resource is read."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.sandbox.flattening.problem import ResourceError
from tests.deployments.sandbox.flattening.support import Json, column, columns, one, refused, rows, view

PATIENT: Json = {"resourceType": "Patient", "id": "p", "active": True, "name": [{"family": "A", "use": "official"}]}
OTHER: Json = {"resourceType": "Patient", "id": "q", "active": False, "name": [{"family": "B"}]}
BARE: Json = {"resourceType": "Patient", "id": "r"}


def matching_ids(*conditions: str) -> list[str]:
    definition = one("id", where=[{"path": each} for each in conditions])
    return [row["x"] for row in rows(definition, PATIENT, OTHER, BARE)]


@pytest.mark.parametrize(
    ("conditions", "ids"),
    [
        (["active"], ["p"]),
        (["active = false"], ["q"]),
        (["name.family = 'A'"], ["p"]),
        (["name.exists()", "active = false"], ["q"]),
        (["active.exists().not()"], ["r"]),
        (["name.where(use = 'official').exists()"], ["p"]),
        (["name.family = 'A' or name.family = 'B'"], ["p", "q"]),
        (["name.family = 'A' and active"], ["p"]),
        (["id = 'p' or id = 'r'", "active.empty()"], ["r"]),
        (["photo.url = 'x'"], []),
    ],
)
def test_where_keeps_resources_for_which_every_condition_is_true(conditions: list[str], ids: list[str]) -> None:
    assert matching_ids(*conditions) == ids


@pytest.mark.parametrize("path", ["name.family", "'text'", "1", "name"])
def test_where_with_a_result_that_is_no_boolean_is_an_error(path: str) -> None:
    with pytest.raises(ResourceError, match="not a Boolean"):
        matching_ids(path)


@pytest.mark.parametrize("kind", ["Observation", "Nonsense", 7, None])
def test_a_resource_of_another_type_than_the_views_is_an_error(kind: Any) -> None:
    with pytest.raises(ResourceError, match="the view is for Patient") as caught:
        rows(one("id"), {"resourceType": kind, "id": "x"})
    assert "Nonsense" not in str(caught.value)


@pytest.mark.parametrize("kind", ["Nonsense", "DomainResource", "HumanName", "", "patient"])
def test_a_view_is_about_a_resource_type(kind: str) -> None:
    assert "resource" in refused(one("id", resource=kind))


@pytest.mark.parametrize("key", ["resourceType", "resource", "select"])
def test_what_a_view_must_have(key: str) -> None:
    definition = one("id")
    del definition[key]
    assert key in refused(definition)


def test_a_view_has_the_resource_type_of_its_profile() -> None:
    assert "resourceType" in refused({**one("id"), "resourceType": "ViewDefinition"})


@pytest.mark.parametrize("key", ["url", "title", "fhirVersion", "meta", "id", "extension"])
def test_unknown_keys_of_a_view_are_fatal(key: str) -> None:
    assert f"`{key}`" in refused({**one("id"), key: "x"})


@pytest.mark.parametrize(
    "clause",
    [
        {"column": [{**column("id"), "tag": []}]},
        {"column": columns("id"), "from": "name"},
        {"column": columns("id"), "where": [{"path": "true"}]},
        {"column": columns("id"), "union": []},
    ],
)
def test_unknown_keys_of_a_clause_or_column_are_fatal(clause: Json) -> None:
    assert "unknown field" in refused(view(clause))


@pytest.mark.parametrize(
    ("clause", "place"),
    [
        ({"column": [{"path": "id"}]}, "select[0].column[0]"),
        ({"column": [{"name": "", "path": "id"}]}, "select[0].column[0].name"),
        ({"column": [{"name": "id"}]}, "select[0].column[0]"),
        ({"forEach": 1, "column": columns("id")}, "select[0].forEach"),
        ({"column": [column("id", collection="yes")]}, "collection"),
        ({"repeat": "item", "column": columns("id")}, "repeat"),
        ({"select": [{"column": [column("x", "name..family")]}]}, "select[0].select[0].column[0].path"),
        ({"forEach": "@@", "column": columns("id")}, "select[0].forEach"),
        ({"unionAll": [{"repeat": ["a", "b("], "column": columns("id")}]}, "select[0].unionAll[0].repeat[1]"),
    ],
)
def test_a_finding_names_its_place(clause: Json, place: str) -> None:
    assert place in refused(view(clause))


@pytest.mark.parametrize("path", ["", "name.", "name family", "name[", "'open", "a = ", "a ? b", "name.first(", "@@"])
def test_a_path_that_is_no_fhirpath_is_refused(path: str) -> None:
    assert "cannot be read" in refused(view({"column": [{"name": "x", "path": path}]}))


@pytest.mark.parametrize("path", ["name.firstt()", "resolve()", "name.trace('x')", "name.first(1)", "name.where()"])
def test_a_function_that_cannot_be_called_is_refused(path: str) -> None:
    assert "() in" in refused(one(path))


def test_a_condition_that_is_no_fhirpath_is_refused() -> None:
    assert refused(one("id", where=[{"path": "true"}, {"path": "active ="}])).startswith("where[1].path")


@pytest.mark.parametrize(
    "select",
    [
        [{"column": columns("id", "id")}],
        [{"column": columns("id")}, {"column": columns("id")}],
        [{"column": columns("id"), "select": [{"forEach": "name", "column": [column("id", "use")]}]}],
        [{"column": columns("id")}, {"unionAll": [{"column": columns("id")}]}],
    ],
)
def test_column_names_of_a_view_are_unique(select: list[Json]) -> None:
    assert "more than one column with the name id" in refused(view(*select))


@pytest.mark.parametrize("second", [columns("a", "c"), columns("b", "a"), columns("a"), columns("a", "b", "c"), []])
def test_branches_of_a_union_have_the_same_columns_in_the_same_order(second: list[Json]) -> None:
    assert "columns mismatch" in refused(view({"unionAll": [{"column": columns("a", "b")}, {"column": second}]}))


@pytest.mark.parametrize("select", [[], [{}], [{"forEach": "name"}], [{"select": [{"unionAll": []}]}]])
def test_a_view_has_a_column(select: list[Json]) -> None:
    assert "no column" in refused(view(*select))


def test_for_each_for_each_or_null_and_repeat_exclude_each_other() -> None:
    ways: list[Json] = [{"forEach": "name"}, {"forEachOrNull": "name"}, {"repeat": ["name"]}]
    for first, second in ((0, 1), (1, 2), (0, 2)):
        assert "only one of" in refused(view({"column": columns("use"), **ways[first], **ways[second]}))


def test_a_view_that_is_no_object_is_refused() -> None:
    nothings: list[Any] = [[], "view", None, 1]
    for nothing in nothings:
        assert refused(nothing)


def test_names_status_types_and_descriptions_change_nothing() -> None:
    described = column("id", type="http://hl7.org/fhirpath/System.String", description="whose row this is")
    definition = view({"column": [described]}, where=[{"path": "active", "description": "living"}])
    assert rows(definition, PATIENT) == [{"id": "p"}]
    del definition["name"], definition["status"]
    assert rows(definition, PATIENT) == [{"id": "p"}]


def test_a_column_may_have_any_name() -> None:
    name = 'Condition_code_coding#icd10-gm.Prüf, "x"'
    assert rows(view({"column": [column(name, "id")]}), PATIENT) == [{name: "p"}]
