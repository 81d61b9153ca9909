"""The lookup file: its shape, and all of its errors at once (docs/steps.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deployments.sandbox.data import DATA, DEMO_CRTDL
from tasks.flattening.lookup import LookupElement, LookupTable, read_lookup
from tasks.flattening.views import views
from tasks.shared.errors import InputError
from tasks.shared.fhir.crtdl import crtdl_in
from tests.tasks.flattening.lookups import URL, Json, element, lookup_of, table, write

DEMO_LOOKUP = DATA / "lookup.json"


def findings(directory: Path, document: Any) -> list[tuple[str, str]]:
    """Reference and JSON path of every finding."""
    path = write(directory, document)
    found = read_lookup(path).findings
    assert all(isinstance(finding, InputError) and finding.exit_code == 2 for finding in found)
    assert all((finding.context or "").startswith(str(path)) for finding in found)
    return [(finding.reference, (finding.context or "").removeprefix(str(path)).strip()) for finding in found]


def test_a_lookup_is_tables_by_canonical_url_with_elements_by_id(tmp_path: Path) -> None:
    coding = {
        "forEachOrNull": "code.coding",
        "column": [{"name": "code", "path": "code", "type": "code", "collection": False, "description": "a code"}],
        "select": [{"forEach": "extension", "column": [{"name": "unit", "path": "$this"}]}],
    }
    elements = {
        "Condition.code": element({}, "Condition.code.coding"),
        "Condition.code.coding": element(coding, parent="Condition.code"),
    }
    other = table({}, url="https://example.org/other", kind="Patient")
    lookup = lookup_of(tmp_path, table(elements), other)
    assert lookup == {URL: LookupTable(**table(elements)), other["url"]: LookupTable(**other)}
    assert lookup[URL].elements["Condition.code.coding"].definition.document() == coding


@pytest.mark.parametrize("text", ["[", "", '[{"url": NaN}]', "[" * 100_000])
def test_what_is_no_json_is_an_error(tmp_path: Path, text: str) -> None:
    assert [reference for reference, _ in findings(tmp_path, text)] == ["lookup-not-json"]


def test_a_file_that_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json"):
        assert [finding.reference for finding in read_lookup(path).findings] == ["lookup-unreadable"]


@pytest.mark.parametrize("document", [{}, 1, None, "text"])
def test_a_document_that_is_no_list_is_a_schema_violation(tmp_path: Path, document: Any) -> None:
    assert findings(tmp_path, json.dumps(document)) == [("lookup-schema-violation", "")]


def test_an_error_has_the_table_the_place_and_the_words_of_pydantic(tmp_path: Path) -> None:
    (finding,) = read_lookup(write(tmp_path, [table({"Condition.code": element({"foreach": "code"})})])).findings
    assert finding.message == f"table {URL}: Extra inputs are not permitted"
    assert (finding.context or "").endswith("lookup.json [0].elements.Condition.code.viewDefinition.foreach")


NAMED = {"name": "code", "path": "code"}


@pytest.mark.parametrize(
    ("definition", "where"),
    [
        ({"where": []}, ".where"),
        ({"forEach": "a", "forEachOrNull": "b"}, ""),
        ({"forEach": ""}, ".forEach"),
        ({"column": NAMED}, ".column"),
        ({"column": [{"path": "code"}]}, ".column[0].name"),
        ({"column": [NAMED | {"path": ""}]}, ".column[0].path"),
        ({"column": [NAMED | {"collection": "true"}]}, ".column[0].collection"),
        ({"select": [{"select": [{"columns": []}]}]}, ".select[0].select[0].columns"),
    ],
)
def test_a_clause_has_the_keys_of_document_3_only(tmp_path: Path, definition: Json, where: str) -> None:
    place = f"[0].elements.Condition.code.viewDefinition{where}"
    document = [table({"Condition.code": element(definition)})]
    assert findings(tmp_path, document) == [("lookup-schema-violation", place)]


@pytest.mark.parametrize(
    ("entry", "where"),
    [
        (1, "[0]"),
        ({"url": URL, "elements": {}}, "[0].resourceType"),
        ({"url": URL, "resourceType": "condition", "elements": {}}, "[0].resourceType"),
        ({"url": " ", "resourceType": "Condition", "elements": {}}, "[0].url"),
        (table({}) | {"elements": []}, "[0].elements"),
        (table({"Condition.code": []}), "[0].elements.Condition.code"),
        (table({"Condition.code": {}}), "[0].elements.Condition.code.viewDefinition"),
        (table({"c": element() | {"children": "d"}}), "[0].elements.c.children"),
        (table({"c": element() | {"child": []}}), "[0].elements.c.child"),
    ],
)
def test_a_table_and_an_element_have_the_keys_of_document_3_only(tmp_path: Path, entry: Any, where: str) -> None:
    assert findings(tmp_path, [entry]) == [("lookup-schema-violation", where)]


def test_null_counts_as_absent_where_a_key_is_optional(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("path", "type", "collection", "description"))
    definition = {"forEach": None, "forEachOrNull": "code", "column": [{"name": "a", **nothing}], "select": None}
    lookup = lookup_of(tmp_path, table({"c": {"viewDefinition": definition, "children": None, "parent": None}}))
    clause = {"forEachOrNull": "code", "column": [{"name": "a"}]}
    assert lookup[URL].elements["c"] == LookupElement(viewDefinition=clause)


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    document = [
        table({"a": element({}, "c"), "b": element({}, "c"), "c": element()}),
        table({"a": element({}, "b"), "b": element({}, "a")}),
        table({"c": element({"forEech": "x"})}) | {"resourceType": None},
        7,
    ]
    assert sorted(findings(tmp_path, document)) == [
        ("lookup-child-cycle", "[1]"),
        ("lookup-duplicate-table", "[1]"),
        ("lookup-multiple-parents", "[0]"),
        ("lookup-schema-violation", "[2].elements.c.viewDefinition.forEech"),
        ("lookup-schema-violation", "[2].resourceType"),
        ("lookup-schema-violation", "[3]"),
    ]


def test_relations_that_are_wrong_are_named(tmp_path: Path) -> None:
    elements = {"a": element({}, "c"), "b": element({}, "c"), "c": element(), "d": element(parent="e")}
    found = read_lookup(write(tmp_path, [table(elements | {"e": element(parent="d")})])).findings
    assert [finding.message for finding in found] == [
        f"table {URL}: element c is listed as a child by a, b",
        f"table {URL}: an element is below itself: d → e → d",
    ]


def test_a_child_without_an_entry_is_a_warning_and_is_left_out(tmp_path: Path) -> None:
    read = read_lookup(write(tmp_path, [table({"a": element({}, "a.b", "a.c"), "a.c": element()})]))
    assert read.findings == []
    assert read.warnings == [f"lookup table {URL}, element a: the child a.b has no entry in this table"]
    assert read.tables[URL].elements["a"].children == ("a.c",)


@pytest.mark.parametrize(
    ("parent", "listed", "expected"),
    [("a", True, "a"), ("b", True, "a"), ("b", False, "b"), (None, True, "a"), ("none", False, None)],
)
def test_the_list_of_children_decides_over_a_parent(
    tmp_path: Path, parent: str | None, listed: bool, expected: str | None
) -> None:
    elements = {"a": element({}, *(["c"] if listed else [])), "b": element(), "c": element(parent=parent)}
    read = lookup_of(tmp_path, table(elements))[URL].elements
    assert read["c"].parent == expected
    assert [key for key, item in read.items() if "c" in item.children] == ([expected] if expected else [])


def test_the_lookup_of_the_demo_has_every_group_and_attribute_of_its_query() -> None:
    read = read_lookup(DEMO_LOOKUP)
    assert (read.findings, read.warnings) == ([], [])
    query = crtdl_in(DEMO_CRTDL.read_bytes(), DEMO_CRTDL)
    made, missing = views(query, read.tables)
    assert missing == ()
    assert [view.group_id for view in made] == [group.id for group in query]
    assert [view.resource_type for view in made] == [group.resource_type for group in query]
