"""Rows of an answer: as lines of CSV, and whose they are (docs/steps.md)."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.flattening.rows import AnswerReader, RowsError, as_csv
from tasks.flattening.tables import file_names
from tasks.flattening.views import GroupView

ONE: list[Any] = []
AT_LEAST_ONE: list[Any] = [{"column": [], "select": [{"forEachOrNull": "x"}]}]
ANY: list[Any] = [{"forEachOrNull": "x", "select": [{"forEach": "y"}]}]
"""Clauses of views, by the number of rows for a resource."""


def view(columns: list[str], clauses: list[Any]) -> GroupView:
    return GroupView("g", "g", "u", "Patient", {"resourceType": "V", "select": clauses}, tuple(columns))


def read(columns: list[str], *lines: bytes, pieces: int = 1 << 16) -> bytes:
    """Return the CSV of an answer that is right, whatever its ids."""
    body = b"\n".join(lines) + b"\n"
    ids = [json.loads(line).get(columns[0], "") or None for line in lines if line.strip()]
    reader = AnswerReader(view(columns, ANY), [one if one is None else str(one) for one in ids])
    text = b"".join(reader.feed(body[at : at + pieces]) for at in range(0, len(body), pieces))
    return text + reader.end()


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (b'"text"', "text"),
        (b'"  blanks "', "  blanks "),
        (b'"a\\u00fc\\n\\t\\"\\\\"', '"aü\n\t""\\"'),
        (b'"a,b"', '"a,b"'),
        (b'"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"', "ä€😀"),
        (b"null", ""),
        (b'""', ""),
        (b"true", "true"),
        (b"false", "false"),
        *[(n.encode(), n) for n in ("1.50", "0", "-0", "1E2", "-0.0", "1e-7", "7", "-7", "1" * 30, "1e400")],
        (b'["a" , 1.50, null]', '"[""a"",1.50,null]"'),
        (b'{"x" : [ 1E2, -0 ], "y":"\\u00fc"}', '"{""x"":[1E2,-0],""y"":""\\u00fc""}"'),
        (b"[]", "[]"),
    ],
)  # fmt: skip
def test_a_cell(value: bytes, cell: str) -> None:
    text = read(["a", "b", "c"], b'{"a":"1","b":%b,"c":"3"}' % value).decode()
    assert text == f"1,{cell},3\n"


def test_a_row_with_a_carriage_return_is_quoted() -> None:
    assert read(["a", "b"], b'{"a":"1","b":"\\r"}', b'{"a":"2"}') == b'"1","\r"\n2,\n'


def test_a_missing_column_is_an_empty_cell_and_the_order_is_that_of_the_view() -> None:
    assert read(["a", "b", "c"], b'{"c":3,"a":1}', b'{"b":"x","z":[1]}', b"{}") == b"1,,3\n,x,\n,,\n"


def test_a_row_of_one_empty_cell_is_no_blank_line() -> None:
    assert read(["a"], b"{}", b'{"a":"1"}') == b'""\n1\n'


@pytest.mark.parametrize("pieces", [1, 7, 100])
def test_blank_lines_and_carriage_returns_between_rows_are_no_rows(pieces: int) -> None:
    lines = (b'{"a":"1"}\r', b"", b"  ", b'\t{ "a" : 2 } ')
    assert read(["a"], *lines, pieces=pieces) == b"1\n2\n"


def test_the_last_row_may_lack_a_line_end() -> None:
    reader = AnswerReader(view(["id"], ONE), ["x", "y"])
    assert reader.feed(b'{"id":"x"}\n{"id":') + reader.feed(b'"y"}') + reader.end() == b"x\ny\n"
    assert (reader.rows, reader.with_rows) == (2, 2)


def test_names_of_columns_may_be_anything() -> None:
    names = ["a.b", "c d", "ä", "class", "a,b", 'q"', "\\"]
    assert list(csv.reader(io.StringIO(as_csv([names]).decode()))) == [names]
    row = json.dumps({name: str(place) for place, name in enumerate(names)}).encode()
    assert read(names, row).decode() == ",".join(map(str, range(len(names)))) + "\n"


@pytest.mark.parametrize(
    "bad",
    [b"[1]", b"3", b'"x"', b"null", b"{", b'{"a":}', b'{"a":1}{"a":2}', b'{"a":01}', b'{"a":"\xff"}', b'{"a":NaN}',
     b"<html>", b'{"b":1,"a":tru}', b'{"a":"\\ud800"}', b"[" * 5000, b'{"a":' + b"[" * 5000],
)  # fmt: skip
def test_a_line_that_is_no_json_object_is_refused_with_its_number(bad: bytes) -> None:
    reader = AnswerReader(view(["a"], ANY), ["1", "2", "3", "5"])
    reader.feed(b'{"a":1}\n{"a":2}\n')
    with pytest.raises(RowsError, match="row 4 ") as caught:
        reader.feed(b'{"a":3}\n\n' + bad + b"\n" + b'{"a":5}\n')
    assert (caught.value.reference, caught.value.line) == ("flattening-row", bad)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def expected(value: Any) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.slow
@given(st.lists(st.dictionaries(st.sampled_from("abcx"), VALUES), max_size=6), st.booleans(), st.integers(1, 40))
def test_a_csv_reader_gets_the_values_back(rows: list[dict[str, Any]], ascii_only: bool, pieces: int) -> None:
    usable = [{key: value for key, value in row.items() if not _surrogate(value)} for row in rows]
    numbered = [{"id": str(number)} | row for number, row in enumerate(usable)]
    lines = [json.dumps(row, ensure_ascii=ascii_only).encode() for row in numbered]
    text = read(["id", "a", "b", "c"], *lines, pieces=pieces).decode() if lines else ""
    found = list(csv.reader(io.StringIO(text, newline="")))
    assert len(found) == len(usable)
    for row, cells in zip(numbered, found, strict=True):
        for name, cell in zip(["id", "a", "b", "c"], cells, strict=True):
            value = row.get(name)
            if isinstance(value, list | dict):
                assert json.loads(cell) == value  # escapes in nested text stay as they were spelled
            else:
                assert cell == expected(value)


def _surrogate(value: object) -> bool:
    return any(0xD800 <= ord(char) < 0xE000 for char in json.dumps(value, ensure_ascii=False))


# Whose the rows are

IDS = ("a", "b", "c")


def with_rows(clauses: list[Any], *rows: str | None, ids: tuple[str | None, ...] = IDS) -> int:
    reader = AnswerReader(view(["id", "x"], clauses), ids)
    for row in rows:
        reader.feed(json.dumps({"id": row, "x": 1}).encode() + b"\n")
    reader.end()
    return reader.with_rows


def test_rows_in_any_order_agree() -> None:
    assert with_rows(ONE, "c", "a", "b") == 3
    assert with_rows(ONE, "a", "b", "a", ids=("a", "a", "b")) == 3
    assert with_rows(ONE, None, "a", ids=("a", None)) == 2
    assert with_rows(AT_LEAST_ONE, "c", "a", "c", "b") == 3
    assert with_rows(ANY, "b", "b") == 1
    assert with_rows(ANY) == 0
    assert with_rows([{"forEach": "x"}], "a", "a") == 1


def test_a_path_that_quotes_a_clause_promises_nothing() -> None:
    with pytest.raises(RowsError):
        with_rows([{"column": [{"name": "x", "path": "where(a = '\"forEach\":')"}]}], "a")


@pytest.mark.parametrize(
    ("clauses", "rows", "what"),
    [
        (ONE, ["a", "b"], "1 missing"),
        (ONE, ["a", "b", "c", "c"], "1 too many"),
        (ONE, ["a", "b", "b"], "1 missing, 1 too many"),
        (ONE, ["a", "b", "c", "d", None], "2 of other resources"),
        (ONE, ["d", "a", "a"], "2 missing, 1 of other resources, 1 too many"),
        (AT_LEAST_ONE, ["a", "a", "b"], "1 missing"),
        (AT_LEAST_ONE, ["a", "b", "c", None], "1 of other resources"),
        (ANY, ["a", "A"], "1 of other resources"),
    ],
)
def test_what_does_not_agree_is_counted_and_not_named(clauses: list[Any], rows: list[Any], what: str) -> None:
    with pytest.raises(RowsError) as caught:
        with_rows(clauses, *rows)
    counted = str(caught.value).removeprefix("the rows do not agree with the 3 resources that were sent: ")
    assert (caught.value.reference, counted) == ("flattening-rows-differ", what)


@given(st.lists(st.sampled_from("abcd"), max_size=6), st.sampled_from([ONE, AT_LEAST_ONE, ANY]))
def test_it_agrees_when_the_multisets_do(rows: list[str], clauses: list[Any]) -> None:
    counts = [rows.count(one) for one in IDS]
    right = "d" not in rows and (clauses is ANY or (min(counts) >= 1 and (clauses is not ONE or max(counts) == 1)))
    try:
        assert with_rows(clauses, *rows) == sum(count > 0 for count in counts)
        agrees = True
    except RowsError:
        agrees = False
    assert agrees == right


# Names of files


@given(st.lists(st.text(max_size=30), max_size=8))
def test_names_of_files_are_unique_in_any_case_and_safe(names: list[str]) -> None:
    made = file_names(names)
    assert len({name.casefold() for name in made}) == len(names)
    for name in made:
        assert name
        assert name[0] not in ". "
        assert name[-1] not in ". "
        assert not set(name) & set('/\\:*?"<>|\0\n')
        assert len(name.encode()) <= 210
    assert file_names(names) == made


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("Größe/Labor: ä", "Größe_Labor_ ä"), ("患者 (1)", "患者 (1)"), ("..hidden", "hidden"), ("", "group"),
        ("a" * 300, "a" * 200), ("ä" * 300, "ä" * 100), ("u\u0308", "ü"), ("=cmd|x", "_cmd_x"),
    ],
)  # fmt: skip
def test_letters_of_all_scripts_stay_in_the_name_of_a_file(name: str, file: str) -> None:
    assert file_names([name]) == [file]
