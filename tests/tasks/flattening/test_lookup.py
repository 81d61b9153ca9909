"""The lookup file: its shape, and all of its errors at once (document 3 §5)."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deployments.sandbox.data import DATA, DEMO_CRTDL
from tasks.flattening.lookup import read_lookup
from tasks.flattening.lookup_model import LookupElement, LookupTable
from tasks.flattening.views import views
from tasks.shared.errors import InputError, SluiceError
from tasks.shared.fhir.crtdl import load_crtdl
from tests.tasks.flattening.lookups import URL, Json, column, element, lookup_of, table, write

DEMO_LOOKUP = DATA / "lookup.json"


def findings(directory: Path, document: Any) -> list[tuple[str, str]]:
    """Reference and JSON path of every finding."""
    path = write(directory, document)
    lookup, found, _ = read_lookup(path)
    assert (lookup is None) == bool(found)
    assert all(isinstance(finding, InputError) and finding.exit_code == 2 for finding in found)
    assert all((finding.context or "").startswith(str(path)) for finding in found)
    return [(finding.reference, (finding.context or "").removeprefix(str(path)).strip()) for finding in found]


def only(directory: Path, document: Any) -> SluiceError:
    (finding,) = read_lookup(write(directory, document))[1]
    return finding


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


@pytest.mark.parametrize(
    ("text", "where"),
    [("[", ":1"), ('[\n{"url": NaN}]', ""), ("", ":1"), ("[1]\nx", ":2"), ("[" * 100_000, ""), (r'["\ud83d"]', "")],
)
def test_what_is_no_json_is_told_with_its_line(tmp_path: Path, text: str, where: str) -> None:
    assert findings(tmp_path, text) == [("lookup-not-json", where)]


def test_a_text_that_is_not_utf8_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "lookup.json"
    path.write_bytes(b'[\n"\xe4"]')
    assert [(f.reference, f.context) for f in read_lookup(path)[1]] == [("lookup-not-json", f"{path}:2")]
    path.write_bytes(b"\xef\xbb\xbf[]")
    assert [f.hint for f in read_lookup(path)[1]] == ["save it as UTF-8 without BOM"]


def test_a_file_that_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json", Path("a\0b")):
        assert [finding.reference for finding in read_lookup(path)[1]] == ["lookup-unreadable"]


def test_a_file_beyond_the_largest_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "lookup.json"
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)
    (finding,) = read_lookup(path)[1]
    assert (finding.reference, finding.message) == ("lookup-unreadable", "this file is larger than 64 MiB")


@pytest.mark.parametrize("document", [{}, 1, None, "text"])
def test_a_document_that_is_no_list_is_a_schema_violation(tmp_path: Path, document: Any) -> None:
    assert findings(tmp_path, json.dumps(document)) == [("lookup-schema-violation", "")]


def test_an_unknown_key_is_an_error_with_table_element_path_and_nearest_key(tmp_path: Path) -> None:
    finding = only(tmp_path, [table({"Condition.code": element({"foreach": "code"})})])
    assert finding.reference == "lookup-schema-violation"
    assert finding.message == f"table {URL}: element Condition.code: the key 'foreach' is unknown"
    assert finding.context is not None
    assert finding.context.endswith('lookup.json [0].elements["Condition.code"].viewDefinition.foreach')
    assert finding.hint == "did you mean forEach?"


NAMED = {"name": "code", "path": "code"}


@pytest.mark.parametrize(
    ("definition", "where"),
    [
        ({"where": []}, ".where"),
        ({"unionAll": []}, ".unionAll"),
        ({"repeat": ["item"]}, ".repeat"),
        ({"forEach": "a", "forEachOrNull": "b"}, ""),
        ({"forEach": ""}, ".forEach"),
        ({"forEachOrNull": 1}, ".forEachOrNull"),
        ({"column": NAMED}, ".column"),
        ({"column": [1]}, ".column[0]"),
        ({"column": [{"path": "code"}]}, ".column[0].name"),
        ({"column": [NAMED, {"name": " "}]}, ".column[1].name"),
        ({"column": [NAMED | {"path": ""}]}, ".column[0].path"),
        ({"column": [NAMED | {"type": 1}]}, ".column[0].type"),
        ({"column": [NAMED | {"collection": "true"}]}, ".column[0].collection"),
        ({"column": [NAMED | {"description": []}]}, ".column[0].description"),
        ({"column": [NAMED | {"tag": []}]}, ".column[0].tag"),
        ({"select": {}}, ".select"),
        ({"select": [[]]}, ".select[0]"),
        ({"select": [{"select": [{"columns": []}]}]}, ".select[0].select[0].columns"),
    ],
)
def test_a_clause_has_the_keys_of_document_3_only(tmp_path: Path, definition: Json, where: str) -> None:
    place = f'[0].elements["Condition.code"].viewDefinition{where}'
    document = [table({"Condition.code": element(definition)})]
    assert findings(tmp_path, document) == [("lookup-schema-violation", place)]


@pytest.mark.parametrize(
    ("entry", "where"),
    [
        (1, "[0]"),
        ({"url": URL, "elements": {}}, "[0].resourceType"),
        ({"url": URL, "resourceType": "condition", "elements": {}}, "[0].resourceType"),
        ({"resourceType": "Condition", "elements": {}}, "[0].url"),
        ({"url": " ", "resourceType": "Condition", "elements": {}}, "[0].url"),
        ({"url": URL, "resourceType": "Condition"}, "[0].elements"),
        (table({}) | {"elements": []}, "[0].elements"),
        (table({}) | {"version": "1"}, "[0].version"),
        (table({"Condition.code": []}), '[0].elements["Condition.code"]'),
        (table({"Condition.code": {}}), '[0].elements["Condition.code"].viewDefinition'),
        (table({"Condition.code": {"viewDefinition": []}}), '[0].elements["Condition.code"].viewDefinition'),
        (table({"c": element() | {"children": "d"}}), "[0].elements.c.children"),
        (table({"c": element() | {"children": [1]}}), "[0].elements.c.children[0]"),
        (table({"c": element({}, "d", "d"), "d": element()}), "[0].elements.c.children"),
        (table({"c": element() | {"parent": []}}), "[0].elements.c.parent"),
        (table({"c": element() | {"child": []}}), "[0].elements.c.child"),
        (table({"": element()}), '[0].elements[""]'),
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


def test_a_key_that_stands_twice_is_an_error_at_every_level(tmp_path: Path) -> None:
    text = json.dumps([table({"c": element(), "d": element()})])
    twice = text.replace('"d": ', '"c": ').replace('"path": "x"', '"path": "x", "path": "y"')
    twice = twice[:-2] + ', "url": "u"}]'
    assert findings(tmp_path, twice) == [
        ("lookup-duplicate-key", "[0].url"),
        ("lookup-duplicate-key", "[0].elements.c"),
        ("lookup-duplicate-key", "[0].elements.c.viewDefinition.column[0].path"),
    ]


def test_two_tables_with_one_url_are_an_error_that_names_both(tmp_path: Path) -> None:
    document = [table({}), table({}, url="https://example.org/other"), table({})]
    finding = only(tmp_path, document)
    assert finding.reference == "lookup-duplicate-table"
    assert finding.message == f"table {URL}: there is a table with this url already, at [0]"
    assert (finding.context or "").endswith(" [2].url")


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    document = [
        table({"a": element({}, "c"), "b": element({}, "c"), "c": element({"forEech": "x"})}),
        table({"a": element({}, "b"), "b": element({}, "a")}) | {"resourceType": None},
        7,
    ]
    assert sorted(findings(tmp_path, document)) == [
        ("lookup-child-cycle", "[1].elements.a"),
        ("lookup-duplicate-table", "[1].url"),
        ("lookup-multiple-parents", "[0].elements.c"),
        ("lookup-schema-violation", "[0].elements.c.viewDefinition.forEech"),
        ("lookup-schema-violation", "[1].resourceType"),
        ("lookup-schema-violation", "[2]"),
    ]


def test_clauses_that_nest_without_end_are_an_error(tmp_path: Path) -> None:
    definition: Json = column("x")
    for _ in range(16):
        definition = {"select": [definition]}
    assert findings(tmp_path, [table({"c": element(definition)})]) == []
    for levels in (1, 300):
        for _ in range(levels):
            definition = {"select": [definition]}
        finding = only(tmp_path, [table({"c": element(definition)})])
        assert finding.message == f"table {URL}: element c: select clauses are nested more than 16 levels deep"
        assert "[0].elements.c.viewDefinition" in (finding.context or "")


def test_a_column_name_that_sql_on_fhir_does_not_know_is_a_warning(tmp_path: Path) -> None:
    elements = {"c": element({"column": [{"name": "icd-10"}], "select": [{"column": [{"name": "ok_1"}]}]})}
    (warning,) = read_lookup(write(tmp_path, [table(elements)]))[2]
    assert warning.startswith(f"column-name: lookup table {URL}, element c: the column 'icd-10'")


def test_the_lookup_of_the_demo_has_every_group_and_attribute_of_its_query() -> None:
    lookup, found, warnings = read_lookup(DEMO_LOOKUP)
    assert (found, warnings) == ([], [])
    assert lookup is not None
    query = load_crtdl(DEMO_CRTDL)
    made, missing = views(query, lookup)
    assert missing == ()
    assert [view.group_id for view in made] == [group.id for group in query.groups]
    assert [view.resource_type for view in made] == [group.resource_type for group in query.groups]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def _spoilt(document: Any, junk: Any, dice: random.Random) -> Any:
    """Return the same document with one value somewhere replaced."""
    if isinstance(document, dict) and document and dice.random() < 0.9:
        key = dice.choice(list(document))
        return document | {key: _spoilt(document[key], junk, dice)}
    if isinstance(document, list) and document and dice.random() < 0.9:
        number = dice.randrange(len(document))
        return [*document[:number], _spoilt(document[number], junk, dice), *document[number + 1 :]]
    return junk


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(JUNK, st.randoms(use_true_random=False))
def test_no_content_of_the_file_raises_and_no_value_is_quoted(tmp_path: Path, junk: Any, dice: random.Random) -> None:
    document = json.loads(DEMO_LOOKUP.read_text(encoding="utf-8"))
    for spoilt in (_spoilt(document, junk, dice), junk):
        lookup, found, warnings = read_lookup(write(tmp_path, json.dumps(spoilt)))
        assert (lookup is None) == bool(found)
        assert all(isinstance(warning, str) for warning in warnings)
        for finding in found:
            finding.render().encode()
