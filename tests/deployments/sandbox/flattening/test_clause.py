"""Select clauses of SQL on FHIR v2: their rows, in order."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.sandbox.flattening.problem import CollectionValueError, ResourceError
from tests.deployments.sandbox.flattening.support import Json, column, columns, rows, text, view

ADA: Json = {
    "resourceType": "Patient",
    "id": "ada",
    "active": True,
    "name": [{"family": "Berg", "given": ["Ada", "Lea"], "use": "official"}, {"family": "Tal", "given": ["Adi"]}],
    "telecom": [{"system": "phone", "value": "1"}],
    "contact": [
        {"name": {"family": "Ost"}, "telecom": [{"system": "email", "value": "2"}, {"system": "phone", "value": "3"}]},
        {"name": {"family": "West"}, "telecom": [{"system": "phone", "value": "4"}]},
    ],
}
BEA: Json = {"resourceType": "Patient", "id": "bea", "name": [{"family": "Mai"}]}
CID: Json = {"resourceType": "Patient", "id": "cid"}

FORM: Json = {
    "resourceType": "QuestionnaireResponse",
    "id": "q",
    "item": [
        {
            "linkId": "1",
            "item": [
                {"linkId": "1.1", "answer": [{"valueString": "yes", "item": [{"linkId": "1.1.1"}]}]},
                {"linkId": "1.2", "item": [{"linkId": "1.2.1"}]},
            ],
        },
        {"linkId": "2"},
    ],
}


def cells(definition: Json, *resources: Json) -> list[tuple[Any, ...]]:
    """Return the rows as tuples in the order of the columns."""
    return [tuple(row.values()) for row in rows(definition, *resources)]


# basic


def test_each_resource_makes_a_row_with_the_columns_in_order() -> None:
    assert rows(view({"column": columns("id", "active")}), ADA, CID) == [
        {"id": "ada", "active": True},
        {"id": "cid", "active": None},
    ]


def test_columns_of_several_clauses_stand_side_by_side() -> None:
    definition = view(
        {"column": columns("id")}, {"column": columns("active")}, {"select": [{"column": columns("gender")}]}
    )
    assert cells(definition, ADA) == [("ada", True, None)]


def test_columns_come_before_nested_clauses_and_those_before_the_union() -> None:
    clause = {
        "unionAll": [{"column": [column("c", "'3'")]}],
        "select": [{"column": [column("b", "'2'")]}],
        "column": [column("a", "'1'")],
    }
    assert list(rows(view(clause), CID)[0].items()) == [("a", "1"), ("b", "2"), ("c", "3")]


def test_no_resources_make_no_rows() -> None:
    assert text(view({"column": columns("id")})) == ""


# null columns


def test_columns_without_a_value_are_left_out_or_null_as_asked() -> None:
    definition = view({"column": columns("id", "active")})
    assert text(definition, CID, nulls=False) == '{"id":"cid"}\n'
    assert text(definition, CID, nulls=True) == '{"id":"cid","active":null}\n'


# collection


def test_a_collection_column_is_an_array_of_all_values() -> None:
    definition = view({"column": [column("given", "name.given", collection=True)]})
    assert cells(definition, ADA, BEA) == [(["Ada", "Lea", "Adi"],), ([],)]


@pytest.mark.parametrize("flag", [{}, {"collection": False}])
def test_more_than_one_value_in_a_column_that_is_no_collection_is_an_error(flag: Json) -> None:
    with pytest.raises(CollectionValueError) as caught:
        rows(view({"column": [column("family", "name.family", **flag)]}), BEA, ADA)
    assert "Berg" not in str(caught.value)
    assert '["Berg","Tal"]' in caught.value.diagnostics


def test_collection_counts_from_the_element_of_for_each() -> None:
    clause = {"forEach": "name", "column": [column("family"), column("given", collection=True)]}
    assert cells(view(clause), ADA) == [("Berg", ["Ada", "Lea"]), ("Tal", ["Adi"])]


# forEach


def test_for_each_makes_a_row_of_every_element_and_none_without() -> None:
    definition = view({"column": columns("id")}, {"forEach": "name", "column": columns("family")})
    assert cells(definition, ADA, BEA, CID) == [("ada", "Berg"), ("ada", "Tal"), ("bea", "Mai")]


def test_for_each_or_null_makes_a_row_without_values_where_there_is_no_element() -> None:
    definition = view({"column": columns("id")}, {"forEachOrNull": "name", "column": columns("family")})
    assert cells(definition, BEA, CID) == [("bea", "Mai"), ("cid", None)]


def test_the_row_of_for_each_or_null_has_no_value_in_any_column_below_it() -> None:
    clause = {
        "forEachOrNull": "name",
        "column": [column("family"), column("fixed", "'x'"), column("given", collection=True)],
        "select": [{"forEach": "period", "column": columns("start")}],
        "unionAll": [{"column": columns("use")}],
    }
    assert cells(view({"column": columns("id")}, clause), CID) == [("cid", None, None, None, None, None)]


def test_nested_for_each_starts_from_the_outer_element() -> None:
    clause = {
        "forEach": "contact",
        "column": [column("family", "name.family")],
        "select": [{"forEach": "telecom", "column": columns("value")}],
    }
    assert cells(view(clause), ADA) == [("Ost", "2"), ("Ost", "3"), ("West", "4")]


def test_for_each_over_primitives_has_them_as_this() -> None:
    assert cells(view({"forEach": "name.given", "column": [column("given", "$this")]}), ADA) == [
        ("Ada",),
        ("Lea",),
        ("Adi",),
    ]


def test_for_each_over_a_path_goes_through_all_elements_on_the_way() -> None:
    assert cells(view({"forEach": "contact.telecom", "column": columns("value")}), ADA) == [("2",), ("3",), ("4",)]


def test_two_for_each_clauses_make_every_combination() -> None:
    definition = view(
        {"forEach": "name", "column": columns("family")}, {"forEach": "contact", "column": [column("c", "name.family")]}
    )
    expected = [("Berg", "Ost"), ("Berg", "West"), ("Tal", "Ost"), ("Tal", "West")]
    assert cells(definition, ADA) == expected


def test_a_clause_without_rows_leaves_the_resource_without_rows() -> None:
    definition = view({"column": columns("id")}, {"forEach": "photo", "column": columns("url")})
    assert cells(definition, ADA) == []


# unionAll


def test_union_all_puts_the_rows_of_its_branches_one_after_the_other() -> None:
    clause = {
        "column": columns("id"),
        "unionAll": [
            {"forEach": "telecom", "column": columns("value", "system")},
            {"forEach": "contact.telecom", "column": columns("value", "system")},
        ],
    }
    assert cells(view(clause), ADA, CID) == [
        ("ada", "1", "phone"),
        ("ada", "2", "email"),
        ("ada", "3", "phone"),
        ("ada", "4", "phone"),
    ]


def test_union_all_keeps_duplicates() -> None:
    branch = {"forEach": "telecom", "column": columns("value")}
    assert cells(view({"unionAll": [branch, branch]}), ADA) == [("1",), ("1",)]


def test_union_all_with_for_each_or_null_has_a_row_for_each_empty_branch() -> None:
    branch = {"forEachOrNull": "name", "column": columns("family")}
    assert cells(view({"column": columns("id"), "unionAll": [branch, branch]}), CID) == [("cid", None)] * 2


def test_union_all_in_union_all_and_below_for_each() -> None:
    inner = {"unionAll": [{"forEach": "telecom[0]", "column": columns("value")}, {"column": [column("value", "'-'")]}]}
    clause = {"forEach": "contact", "unionAll": [{"column": [column("value", "name.family")]}, inner]}
    assert cells(view(clause), ADA) == [("Ost",), ("2",), ("-",), ("West",), ("4",), ("-",)]


# repeat


def links(definition: Json) -> list[Any]:
    return [row["linkId"] for row in rows(definition, FORM)]


def form(*select: Json) -> Json:
    return view(*select, resource="QuestionnaireResponse")


def test_repeat_follows_its_path_to_any_depth_depth_first() -> None:
    assert links(form({"repeat": ["item"], "column": columns("linkId")})) == ["1", "1.1", "1.2", "1.2.1", "2"]


def test_repeat_follows_several_paths_from_every_element() -> None:
    clause = {"repeat": ["item", "answer.item"], "column": columns("linkId")}
    assert links(form(clause)) == ["1", "1.1", "1.1.1", "1.2", "1.2.1", "2"]


def test_repeat_that_finds_nothing_makes_no_row() -> None:
    assert rows(form({"column": columns("id")}, {"repeat": ["photo"], "column": columns("linkId")}), FORM) == []


def test_repeat_with_for_each_and_with_for_each_or_null_below() -> None:
    answer = [column("answer", "value.ofType(string)")]
    below = {"repeat": ["item"], "column": columns("linkId"), "select": [{"forEach": "answer", "column": answer}]}
    assert cells(form(below), FORM) == [("1.1", "yes")]
    below["select"] = [{"forEachOrNull": "answer", "column": answer}]
    assert cells(form(below), FORM) == [("1", None), ("1.1", "yes"), ("1.2", None), ("1.2.1", None), ("2", None)]


def test_repeat_in_the_branches_of_a_union() -> None:
    clause = {
        "unionAll": [
            {"repeat": ["item"], "column": columns("linkId")},
            {"repeat": ["item.item"], "column": columns("linkId")},
        ]
    }
    assert links(form(clause)) == ["1", "1.1", "1.2", "1.2.1", "2", "1.1", "1.2"]


def test_a_repeat_without_end_is_an_error() -> None:
    with pytest.raises(ResourceError, match="deeper than 200 levels"):
        rows(form({"repeat": ["$this"], "column": columns("linkId")}), FORM)


# %rowIndex


def test_row_index_is_0_for_the_resource() -> None:
    assert cells(view({"column": [column("n", "%rowIndex")]}), ADA, BEA) == [(0,), (0,)]


def test_row_index_counts_the_elements_of_each_level() -> None:
    clause = {
        "forEach": "contact",
        "column": [column("outer", "%rowIndex")],
        "select": [{"forEach": "telecom", "column": [column("inner", "%rowIndex"), column("value")]}],
    }
    assert cells(view(clause), ADA) == [(0, 0, "2"), (0, 1, "3"), (1, 0, "4")]


def test_row_index_of_for_each_or_null_without_element_is_0() -> None:
    clause = {"forEachOrNull": "name", "column": [column("n", "%rowIndex"), column("family")]}
    assert cells(view(clause), CID) == [(0, None)]


def test_row_index_counts_over_all_of_a_repeat() -> None:
    clause = {"repeat": ["item"], "column": [column("n", "%rowIndex"), column("linkId")]}
    assert cells(form(clause), FORM) == [(0, "1"), (1, "1.1"), (2, "1.2"), (3, "1.2.1"), (4, "2")]


def test_row_index_of_a_union_is_that_of_the_branch_or_of_what_surrounds_it() -> None:
    names = [column("n", "%rowIndex"), column("value")]
    branches = [{"forEach": "telecom", "column": names}, {"column": [names[0], column("value", "name.family")]}]
    assert cells(view({"forEach": "contact", "unionAll": branches}), ADA) == [
        (0, "2"),
        (1, "3"),
        (0, "Ost"),
        (0, "4"),
        (1, "West"),
    ]


def test_row_index_is_a_number_to_calculate_with() -> None:
    clause = {
        "forEach": "name",
        "column": [column("n", "%rowIndex + 1"), column("key", "%resource.id & '-' & %rowIndex.toString()")],
    }
    assert cells(view(clause), ADA) == [(1, "ada-0"), (2, "ada-1")]
