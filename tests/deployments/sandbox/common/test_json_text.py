"""Numbers keep their spelling (document 3 §1)."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.sandbox.common.json_text import JsonReader, decode_decimals, decode_raw, encode, plain, spelled
from tests.conftest import examples

NUMBERS = ["1.50", "1E2", "1e-7", "-0.0", "-0", "0", "0.10", "12345678901234567890123", "3.141592653589793238"]
both = pytest.mark.parametrize("decode", [decode_decimals, decode_raw], ids=["decimals", "raw"])
decimals = st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)


@both
@pytest.mark.parametrize("text", NUMBERS)
@pytest.mark.parametrize("around", ["%s", "[%s]", '{"a":%s}', "[1,%s,2]"])
def test_a_number_comes_back_as_it_was_spelled(decode: JsonReader, text: str, around: str) -> None:
    document = (around % text).encode()
    assert encode(decode(document)) == document


@both
@settings(max_examples=examples(50), deadline=None)
@given(st.recursive(decimals, lambda inner: st.lists(inner, max_size=4).map(lambda parts: f"[{','.join(parts)}]")))
def test_what_is_read_is_written_with_the_same_numbers(decode: JsonReader, text: str) -> None:
    assert encode(decode(text.encode())).decode() == text


@pytest.mark.slow
@both
@settings(max_examples=examples(50), deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.text() | st.integers() | st.sampled_from(["1.50", "-0,", "[-0]"]),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_everything_else_is_as_json_has_it(decode: JsonReader, value: object) -> None:
    assert decode(json.dumps(value).encode()) == value
    assert json.loads(encode(value)) == value
    assert json.loads(encode(decode(json.dumps(value, ensure_ascii=False).encode()))) == value


def test_a_decimal_can_be_calculated_with() -> None:
    assert decode_decimals(b"1.50") + 1 == Decimal("2.50")


def test_the_library_sees_decimals() -> None:
    assert plain(decode_raw(b'{"a":[1.50,2]}')) == {"a": [Decimal("1.50"), 2]}


def test_the_text_of_a_value() -> None:
    assert [spelled(value) for value in decode_raw(b'["x",1.50,7,true]')] == ["x", "1.50", "7", "true"]


def test_a_number_that_only_leaves_as_it_came_may_be_of_any_size() -> None:
    assert encode(decode_raw(b"[1e400,1E999999999]")) == b"[1e400,1E999999999]"


@both
@pytest.mark.parametrize("text", [b"", b"{", b"nul", b"\xff", b"<html>", b'{"a":01}', b"[" * 100_000, b"NaN"])
def test_what_is_no_json_is_an_error(decode: JsonReader, text: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        decode(text)


@pytest.mark.parametrize("text", [b"1E999999999", b"[1e-401]"])
def test_a_number_that_no_calculation_should_meet_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        decode_decimals(text)
