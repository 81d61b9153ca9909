"""Numbers keep their spelling (document 3 §1)."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.sandbox.flattening.jsontext import decode, encode

decimals = st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)


@settings(max_examples=50, deadline=None)
@given(st.recursive(decimals, lambda inner: st.lists(inner, max_size=4).map(lambda parts: f"[{','.join(parts)}]")))
def test_what_is_read_is_written_with_the_same_numbers(text: str) -> None:
    assert encode(decode(text.encode())).decode() == text


@given(
    st.recursive(
        st.none() | st.booleans() | st.text() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_everything_else_is_as_json_has_it(value: object) -> None:
    assert decode(json.dumps(value).encode()) == value
    assert json.loads(encode(value)) == value


def test_a_decimal_can_be_calculated_with() -> None:
    assert decode(b"1.50") + 1 == Decimal("2.50")


@pytest.mark.parametrize("text", [b"1E999999999", b"[1e-401]", b"{", b"", b"nul", b"[" * 100_000])
def test_what_cannot_be_read_is_an_error(text: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        decode(text)
