"""A Bundle taken apart at the commas between its entries: ``tasks/shared/fhir/envelope.py``."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.shared.errors import DataError
from tasks.shared.fhir.envelope import Envelope, check_entries, open_bundle, pieces_of
from tests.tasks.shared.fhir.json_text import OBJECTS, DrawnBundle, bundles, damaged

CANARY = "canary-4711"


def refused(line: bytes) -> str:
    """Return the reference of the error with which a line is refused."""
    with pytest.raises(DataError) as caught:
        open_bundle(line, where="x.ndjson:7")
    assert caught.value.context == "x.ndjson:7"
    assert caught.value.__cause__ is None
    return caught.value.reference


@pytest.mark.slow
@given(bundles())
def test_envelope_and_pieces_are_the_line_byte_for_byte(bundle: DrawnBundle) -> None:
    envelope, pieces = open_bundle(bundle.line)
    assert pieces == (bundle.pieces or [])
    assert envelope.before + b",".join(pieces) + envelope.after == bundle.line
    assert envelope.close(pieces) == bundle.line


@pytest.mark.slow
@given(bundles())
def test_the_envelope_knows_the_bundles_own_keys(bundle: DrawnBundle) -> None:
    envelope, _ = open_bundle(bundle.line)
    parsed = json.loads(bundle.line)
    assert envelope.resource_type == "Bundle"
    assert envelope.id == parsed.get("id")
    assert envelope.type == parsed.get("type")
    without = json.loads(b"".join(envelope.without("total")))
    for name in ("entry", "total"):
        parsed.pop(name, None)
    without.pop("entry", None)
    assert without == parsed


@pytest.mark.slow
@given(bundles(), st.lists(OBJECTS.map(str.encode), min_size=1, max_size=3))
def test_other_entries_can_be_put_into_every_envelope(bundle: DrawnBundle, entries: list[bytes]) -> None:
    envelope, _ = open_bundle(bundle.line)
    closed = envelope.close(entries)
    parsed = json.loads(closed)
    assert parsed.pop("entry") == [json.loads(entry) for entry in entries]
    original = json.loads(bundle.line)
    original.pop("entry", None)
    assert parsed == original
    assert open_bundle(closed)[1] == entries


@pytest.mark.slow
@given(damaged())
def test_a_damaged_line_is_refused_or_cut_exactly(line: bytes) -> None:
    try:
        envelope, pieces = open_bundle(line)
    except DataError:
        return
    assert envelope.before + b",".join(pieces) + envelope.after == line
    parsed = json.loads(line)
    assert [json.loads(piece) for piece in pieces] == (parsed.get("entry") or [])


@given(st.binary(max_size=60))
def test_anything_else_is_refused(line: bytes) -> None:
    assert refused(line) in {"not-json", "not-utf8", "not-a-bundle"}


@pytest.mark.slow
@given(bundles())
def test_the_entries_alone_are_cut_in_the_same_way(bundle: DrawnBundle) -> None:
    _, pieces = open_bundle(bundle.line)
    entries = b"[%b]" % b",".join(pieces)
    assert check_entries(entries) == len(pieces)
    assert pieces_of(entries) == pieces


@pytest.mark.parametrize(
    ("line", "pieces"),
    [
        (b'{"resourceType":"Bundle","entry":[{"a":1},{"b":2}]}', [b'{"a":1}', b'{"b":2}']),
        (b'{"entry":[{"a":1}],"resourceType":"Bundle"}', [b'{"a":1}']),
        (b'{"resourceType":"Bundle","entry":[ {"a":1} , {} ],"id":"x"}', [b' {"a":1} ', b" {} "]),
        (b'{\n  "resourceType": "Bundle",\n  "entry": [\n    {"a":1}\n  ]\n}', [b'\n    {"a":1}\n  ']),
        (b'{"resourceType":"Bundle","entry":[]}', []),
        (b'{"resourceType":"Bundle","entry":[ \t ]}', []),
        (b'{"resourceType":"Bundle","entry":null}', []),
        (b'{"resourceType":"Bundle"}', []),
        (b' { "resourceType" : "Bundle" } ', []),
        (b'{"resourceType":"Bundle","entry":[{"s":"]},{\\"[\\\\"},{}]}', [b'{"s":"]},{\\"[\\\\"}', b"{}"]),
        (b'{"resourceType":"Bundle","meta":{"entry":[{"a":1}]},"entry":[{"a":1}]}', [b'{"a":1}']),
        (b'{"resourceType":"Bundle","x":{"entry":[{"a":1},null]},"entry":[{"a":1}]}', [b'{"a":1}']),
        (b'{"resourceType":"Bundle","x":{"entry":[{"a":1}]},"entry":[{"a":1},{}]}', [b'{"a":1}', b"{}"]),
        (b'{"resourceType":"Bundle","x":{"entry":[1]},"entry":[]}', []),
        (b'{"resourceType":"Bundle","x":{"entry":[ ]},"\\u0065ntry":[]}', []),
        (b'{"resourceType":"Bundle","entry":[{"a":1}],"x":{"entry":[{"b":1}]}}', [b'{"a":1}']),
        (b'{"resourceType":"Bundle","x":"\\"entry\\":[","entry":[{"entry":[{}]}]}', [b'{"entry":[{}]}']),
        (
            b'{"resourceType":"Bundle","entry":[{"v":1.50},{"v":-0.0},{"v":1E400}]}',
            [b'{"v":1.50}', b'{"v":-0.0}', b'{"v":1E400}'],
        ),
        ('{"resourceType":"Bundle","entry":[{"n":"Müller 😀"}]}'.encode(), ['{"n":"Müller 😀"}'.encode()]),
    ],
)
def test_entries_are_cut_at_the_commas(line: bytes, pieces: list[bytes]) -> None:
    envelope, found = open_bundle(line)
    assert found == pieces
    assert envelope.before + b",".join(found) + envelope.after == line
    assert json.loads(envelope.close([b"{}", b' {"x":1}']))["entry"] == [{}, {"x": 1}]


def test_before_ends_and_after_begins_with_the_bracket_of_entry() -> None:
    envelope, _ = open_bundle(b'{"resourceType":"Bundle","entry":[{}, {}],"id":"x"}')
    assert envelope.before == b'{"resourceType":"Bundle","entry":['
    assert envelope.after == b'],"id":"x"}'


@pytest.mark.parametrize(
    ("line", "reference"),
    [
        (b"", "not-json"),
        (b"{", "not-json"),
        (b'{"resourceType":"Bundle","entry":[{"a":1}', "not-json"),
        (b'{"resourceType":"Bundle","entry":[{},]}', "not-json"),
        (b'{"resourceType":"Bundle"} {}', "not-json"),
        (b'{"resourceType":"Bundle","a":01}', "not-json"),
        (b'\xef\xbb\xbf{"resourceType":"Bundle"}', "not-json"),
        (b'{"resourceType":"Bundle","entry":[{"a":"\xff"}]}', "not-utf8"),
        (b'{"resourceType":"Bundle","\xc3":1}', "not-utf8"),
        (b'{"resourceType":"Bundle","entry":[{"a":"\xed\xa0\x80"}]}', "not-utf8"),
        (b"[]", "not-a-bundle"),
        (b'"Bundle"', "not-a-bundle"),
        (b"{}", "not-a-bundle"),
        (b'{"resourceType":"Patient"}', "not-a-bundle"),
        (b'{"resourceType":"List","entry":[{}]}', "not-a-bundle"),
        (b'{"resourceType":"Bundle","entry":{}}', "not-a-bundle"),
        (b'{"resourceType":"Bundle","entry":[1]}', "not-a-bundle"),
        (b'{"resourceType":"Bundle","entry":[{},null]}', "not-a-bundle"),
        (b'{"resourceType":"Bundle","id":7}', "not-a-bundle"),
        (b'{"resourceType":"Bundle","type":[]}', "not-a-bundle"),
        (b'{"resourceType":"Bundle","entry":[{}],"entry":[{}]}', "repeated-key"),
        (b'{"resourceType":"Bundle","entry":[{}],"entry":[{},{}]}', "repeated-key"),
        (b'{"resourceType":"Bundle","entry":[{}],"\\u0065ntry":[{"a":1}]}', "repeated-key"),
        (b'{"resourceType":"Bundle","entry":null,"entry":[{}]}', "repeated-key"),
        (b'{"resourceType":"Bundle","entry":[{}],"entry":null}', "repeated-key"),
        (b'{"resourceType":"Bundle","id":"a","entry":[{}],"id":"a"}', "repeated-key"),
        (b'{"resourceType":"Bundle","id":"a","entry":[{}],"\\u0069d":"b"}', "repeated-key"),
        (b'{"type":"batch","resourceType":"Bundle","type":"transaction"}', "repeated-key"),
        (b'{"resourceType":"Bundle","total":12,"total":1}', "repeated-key"),
        (b'{"resourceType":"Bundle","total":1,"total":12}', "repeated-key"),
        (b'{"resourceType":"Bundle","x":{"y":1},"x":{"y":1}}', "repeated-key"),
        (b'{"resourceType":"Patient","resourceType":"Bundle"}', "repeated-key"),
        (b'{"resourceType":"Bundle","entry":[{"a":' + b"[" * 5000 + b"]" * 5000 + b"}]}", "json-too-deep"),
        (b'{"resourceType":"Bundle","a":' + b"[" * 5000 + b"]" * 5000 + b"}", "json-too-deep"),
    ],
)
def test_what_is_no_bundle_is_refused_with_a_reference(line: bytes, reference: str) -> None:
    assert refused(line) == reference


def test_keys_of_an_entry_may_stand_twice_they_are_not_looked_at() -> None:
    line = b'{"resourceType":"Bundle","entry":[{"id":1,"id":2}]}'
    assert open_bundle(line)[1] == [b'{"id":1,"id":2}']


def test_nesting_as_deep_as_fhir_has_it_is_no_matter() -> None:
    entry = b'{"item":[' * 100 + b"{}" + b"]}" * 100
    assert open_bundle(b'{"resourceType":"Bundle","entry":[' + entry + b"]}")[1] == [entry]


@pytest.mark.parametrize(
    "line",
    [
        f'{{"resourceType":"Bundle","id":"{CANARY}","entry":[{{"a":"{CANARY}"}}'.encode(),
        f'{{"resourceType":"{CANARY}"}}'.encode(),
        f'{{"resourceType":"Bundle","id":["{CANARY}"]}}'.encode(),
        f'{{"resourceType":"Bundle","entry":["{CANARY}"]}}'.encode(),
        f'{{"resourceType":"Bundle","{CANARY}":1,"{CANARY}":2}}'.encode(),
        f'{{"resourceType":"Bundle","x":"{CANARY}'.encode() + b'\xff"}',
    ],
)
def test_no_error_quotes_the_line(line: bytes) -> None:
    with pytest.raises(DataError) as caught:
        open_bundle(line)
    assert CANARY not in caught.value.render() + repr(caught.value)
    assert caught.value.__suppress_context__


def test_the_repr_of_an_envelope_shows_no_data() -> None:
    envelope, _ = open_bundle(f'{{"resourceType":"Bundle","id":"{CANARY}","type":"batch"}}'.encode())
    assert CANARY not in repr(envelope)
    assert "batch" in repr(envelope)


def test_parts_of_a_bundle_keep_its_id_type_and_timestamp() -> None:
    line = b'{"resourceType":"Bundle","id":"b","type":"batch","timestamp":"2024-01-01","entry":[{"a":1},{"b":2}]}'
    envelope, pieces = open_bundle(line)
    parts = [json.loads(envelope.close([piece])) for piece in pieces]
    for part in parts:
        assert {key: value for key, value in part.items() if key != "entry"} == {
            "resourceType": "Bundle",
            "id": "b",
            "type": "batch",
            "timestamp": "2024-01-01",
        }
    assert [part["entry"] for part in parts] == [[{"a": 1}], [{"b": 2}]]


def test_an_envelope_is_a_value() -> None:
    line = b'{"resourceType":"Bundle","entry":[{}]}'
    one: Envelope = open_bundle(line)[0]
    assert one == open_bundle(line)[0]
    with pytest.raises(AttributeError):
        one.id = "other"  # type: ignore[misc]
