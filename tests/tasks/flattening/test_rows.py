"""Rows become lines of CSV (document 3 §5, "Answer")."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.flattening.rows import NoRowError, RowReader, header
from tasks.flattening.tables import file_names


def read(columns: list[str], *lines: bytes) -> bytes:
    return RowReader(columns).read(b"\n".join(lines) + b"\n")


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (b'"text"', "text"),
        (b'"  blanks "', "  blanks "),
        (b'"a\\u00fc\\n\\t\\"\\\\"', '"aü\n\t""\\"'),
        (b'"a,b"', '"a,b"'),
        (b'"\\r"', '"\r"'),
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
    if "\r" in cell:
        assert text == f'"1",{cell},"3"\n'
    else:
        assert text == f"1,{cell},3\n"


def test_a_missing_column_is_an_empty_cell_and_the_order_is_that_of_the_view() -> None:
    assert read(["a", "b", "c"], b'{"c":3,"a":1}', b'{"b":"x"}', b"{}") == b"1,,3\n,x,\n,,\n"


def test_a_row_of_one_empty_cell_is_no_blank_line() -> None:
    assert read(["a"], b"{}", b'{"a":"1"}') == b'""\n1\n'


def test_blank_lines_and_carriage_returns_between_rows_are_no_rows() -> None:
    assert read(["a"], b'{"a":"1"}\r', b"", b"  ", b'\t{ "a" : 2 } ') == b"1\n2\n"


def test_names_of_columns_may_be_anything() -> None:
    names = ["a.b", "c d", "ä", "class", "a,b", 'q"', "\\"]
    assert list(csv.reader(io.StringIO(header(names).decode()))) == [names]
    row = json.dumps({name: str(place) for place, name in enumerate(names)}).encode()
    assert read(names, row).decode() == ",".join(map(str, range(len(names)))) + "\n"


def test_keys_that_are_no_column_are_ignored_and_known_of() -> None:
    plain, reader = RowReader(["a"]), RowReader(["a"])
    assert plain.read(b'{"a":1}\n') == reader.read(b'{"a":1}\n') == b"1\n"
    assert not plain.unknown_keys
    assert reader.read(b'{"a":2,"z":{"y":[1]}}\n{"z":1}\n{"a":3}\n') == b'2\n""\n3\n'
    assert reader.unknown_keys
    assert reader.count == 4


def test_columns_that_had_a_value_are_known() -> None:
    reader = RowReader(["a", "b", "c", "d", "e"])
    reader.read(b'{"a":"","b":null,"c":0}\n{"d":false}\n')
    assert reader.filled == {2, 3}


@pytest.mark.parametrize(
    "bad",
    [b"[1]", b"3", b'"x"', b"null", b"{", b'{"a":}', b'{"a":1}{"a":2}', b'{"a":01}', b'{"a":"\xff"}', b'{"a":NaN}',
     b"<html>", b'{"b":1,"a":tru}', b'{"a":"\\ud800"}', b"[" * 5000, b'{"a":' + b"[" * 5000],
)  # fmt: skip
@pytest.mark.parametrize("unknown", [False, True])
def test_a_line_that_is_no_json_object_is_refused_with_its_number(bad: bytes, unknown: bool) -> None:
    reader = RowReader(["a"])
    reader.read(b'{"a":1}\n{"a":2}\n')
    with pytest.raises(NoRowError) as caught:
        reader.read((b'{"a":3,"z":1}\n' if unknown else b'{"a":3}\n') + b"\n" + bad + b"\n" + b'{"a":5}\n')
    assert caught.value.number == 4
    assert caught.value.line == bad
    assert "4" in str(caught.value)


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
@given(st.lists(st.dictionaries(st.sampled_from("abcx"), VALUES), max_size=6), st.booleans())
def test_a_csv_reader_gets_the_values_back(rows: list[dict[str, Any]], ascii_only: bool) -> None:
    usable = [{key: value for key, value in row.items() if not _surrogate(value)} for row in rows]
    block = b"".join(json.dumps(row, ensure_ascii=ascii_only).encode() + b"\n" for row in usable)
    text = RowReader(["a", "b", "c"]).read(block).decode()
    found = list(csv.reader(io.StringIO(text, newline="")))
    assert len(found) == len(usable)
    for row, cells in zip(usable, found, strict=True):
        for name, cell in zip("abc", cells, strict=True):
            value = row.get(name)
            if isinstance(value, list | dict):
                assert json.loads(cell) == value  # escapes in nested text stay as they were spelled
            else:
                assert cell == expected(value)


def _surrogate(value: object) -> bool:
    return any(0xD800 <= ord(char) < 0xE000 for char in json.dumps(value, ensure_ascii=False))


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
