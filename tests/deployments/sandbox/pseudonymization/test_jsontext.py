"""Numbers keep their spelling (document 3 §1)."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.sandbox.pseudonymization.jsontext import decode, encode, plain, spelled
from deployments.sandbox.pseudonymization.problem import MalformedResourceError
from tests.deployments.sandbox.pseudonymization.conftest import raw, rule, rules

NUMBERS = ["1.50", "1E2", "1e-7", "-0.0", "-0", "0", "0.10", "12345678901234567890123", "1e400", "3.141592653589793238"]


@pytest.mark.parametrize("text", NUMBERS)
@pytest.mark.parametrize("around", ["%s", "[%s]", '{"a":%s}', "[1,%s,2]"])
def test_a_number_comes_back_as_it_was_spelled(text: str, around: str) -> None:
    document = (around % text).encode()
    assert encode(decode(document)) == document


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_beside_what_a_rule_changes_keep_their_spelling(text: str) -> None:
    document = f'{{"resourceType":"Observation","id":"a","valueQuantity":{{"value":{text},"unit":"mg"}}}}'
    done = raw(rules(rule("Observation.value.unit", "redact")), document.encode())
    assert done.startswith(f'{{"resourceType":"Observation","id":"a","valueQuantity":{{"value":{text}}}'.encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["1.50", "-0,", "[-0]"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=50, deadline=None)
@given(JSON)
def test_every_document_survives(document: object) -> None:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    assert json.loads(encode(decode(text))) == document


def test_the_library_sees_decimals() -> None:
    assert plain(decode(b'{"a":[1.50,2]}')) == {"a": [Decimal("1.50"), 2]}


def test_the_text_of_a_value() -> None:
    assert [spelled(value) for value in decode(b'["x",1.50,7,true]')] == ["x", "1.50", "7", "true"]


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"<html>", b'{"a":01}', b"[" * 100_000, b"NaN"])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(MalformedResourceError):
        decode(text)
