"""Numbers keep their spelling (document 3 §1)."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import strategies as st

from deployments.sandbox.common.json_text import JsonReader, decode_decimals, decode_raw, encode

NUMBERS = ["1.50", "1E2", "1e-7", "-0.0", "-0", "0", "0.10", "12345678901234567890123", "3.141592653589793238"]
both = pytest.mark.parametrize("decode", [decode_decimals, decode_raw], ids=["decimals", "raw"])
decimals = st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)


@both
@pytest.mark.parametrize("text", NUMBERS)
@pytest.mark.parametrize("around", ["%s", "[%s]", '{"a":%s}', "[1,%s,2]"])
def test_a_number_comes_back_as_it_was_spelled(decode: JsonReader, text: str, around: str) -> None:
    document = (around % text).encode()
    assert encode(decode(document)) == document


def test_a_decimal_can_be_calculated_with() -> None:
    assert decode_decimals(b"1.50") + 1 == Decimal("2.50")


@both
@pytest.mark.parametrize("text", [b"", b"{", b"nul", b"\xff", b"<html>", b'{"a":01}', b"[" * 100_000, b"NaN"])
def test_what_is_no_json_is_an_error(decode: JsonReader, text: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        decode(text)
