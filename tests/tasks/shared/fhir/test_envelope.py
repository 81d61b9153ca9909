"""A Bundle taken apart into its entries and the members around them: ``tasks/shared/fhir/envelope.py``."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.shared.errors import DataError
from tasks.shared.fhir.envelope import check_entries, open_bundle, pieces_of
from tests.tasks.shared.fhir.json_text import OBJECTS, DrawnBundle, bundles

CANARY = "canary-4711"


@pytest.mark.slow
@given(bundles())
def test_values_keep_their_spelling_and_their_order(bundle: DrawnBundle) -> None:
    envelope, pieces = open_bundle(bundle.line)
    assert pieces == [piece.strip() for piece in bundle.pieces or []]
    closed = json.loads(envelope.close(pieces), parse_float=str, parse_int=str, object_pairs_hook=list)
    given_members = json.loads(bundle.line, parse_float=str, parse_int=str, object_pairs_hook=list)
    assert [one for one in closed if one != ("entry", [])] == [one for one in given_members if one != ("entry", [])]
    assert check_entries(b"[%b]" % b",".join(pieces)) == len(pieces)


@pytest.mark.slow
@given(bundles(), st.lists(OBJECTS.map(str.encode), min_size=1, max_size=3))
def test_other_entries_can_be_put_into_every_envelope(bundle: DrawnBundle, entries: list[bytes]) -> None:
    envelope, _ = open_bundle(bundle.line)
    parsed = json.loads(envelope.without("total").close(entries))
    assert parsed.pop("entry") == [json.loads(entry) for entry in entries]
    original = json.loads(bundle.line)
    for name in ("entry", "total"):
        original.pop(name, None)
    assert parsed == original
    assert (envelope.id, envelope.type) == (original.get("id"), original.get("type"))


@pytest.mark.parametrize(
    ("line", "pieces"),
    [
        (b'{"resourceType":"Bundle","entry":[{"a":1},{"b":2}]}', [b'{"a":1}', b'{"b":2}']),
        (b'{"entry":[{"a":1}],"resourceType":"Bundle"}', [b'{"a":1}']),
        (b'{"resourceType":"Bundle","entry":null}', []),
        (b'{"resourceType":"Bundle"}', []),
        (b'{"resourceType":"Bundle","x":{"entry":[{"a":1},null]},"entry":[{"a":1}]}', [b'{"a":1}']),
        (
            b'{"resourceType":"Bundle","entry":[{"v":1.50},{"v":-0.0},{"v":1E400}]}',
            [b'{"v":1.50}', b'{"v":-0.0}', b'{"v":1E400}'],
        ),
    ],
)
def test_entries_keep_their_bytes(line: bytes, pieces: list[bytes]) -> None:
    envelope, found = open_bundle(line)
    assert found == pieces
    assert json.loads(envelope.close([b"{}", b'{"x":1}']))["entry"] == [{}, {"x": 1}]


def test_the_text_around_the_entries_has_the_members_in_their_order() -> None:
    envelope, _ = open_bundle(b'{"resourceType":"Bundle","entry":[{}, {}],"id":"x"}')
    assert envelope.around() == (b'{"resourceType":"Bundle","entry":[', b'],"id":"x"}')


@pytest.mark.parametrize(
    ("line", "reference"),
    [
        (b"{", "not-json"),
        (b'{"resourceType":"Bundle","entry":[{},]}', "not-json"),
        (b'{"resourceType":"Bundle","entry":[{"a":"\xff"}]}', "not-utf8"),
        (b"[]", "not-a-bundle"),
        (b'{"resourceType":"Patient"}', "not-a-bundle"),
        (b'{"resourceType":"Bundle","entry":{}}', "not-a-bundle"),
        (b'{"resourceType":"Bundle","entry":[{},null]}', "not-a-bundle"),
        (b'{"resourceType":"Bundle","a":' + b"[" * 5000 + b"]" * 5000 + b"}", "json-too-deep"),
        (f'{{"resourceType":"Bundle","entry":["{CANARY}"]}}'.encode(), "not-a-bundle"),
    ],
)
def test_what_is_no_bundle_is_refused_without_quoting_it(line: bytes, reference: str) -> None:
    with pytest.raises(DataError) as caught:
        open_bundle(line, where="x.ndjson:7")
    assert (caught.value.reference, caught.value.context) == (reference, "x.ndjson:7")
    assert CANARY not in caught.value.render() + repr(caught.value)


def test_pieces_are_objects() -> None:
    assert pieces_of(b'[{"a":1} , {}]') == [b'{"a":1}', b"{}"]
