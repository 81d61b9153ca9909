"""Parts of a line that are validated (document 3 §6)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.shared.errors import DataError
from tasks.shared.fhir.long_line import lines_with_long
from tasks.validation.chunks import Item, ItemReader, key_of
from tests.peers.data import bundle
from tests.peers.validation import patient, resource


def read(line: bytes | dict[str, Any], file: str = "a.ndjson") -> tuple[list[Item], ItemReader]:
    text = line if isinstance(line, bytes) else json.dumps(line).encode()
    reader = ItemReader(file)
    [items] = reader.groups([(7, text)])
    return items, reader


def sent(item: Item) -> dict[str, Any]:
    """Return the entry as the service gets it, numbers as text."""
    parsed: dict[str, Any] = json.loads(item.text, parse_float=str, parse_int=str)
    return parsed


@pytest.mark.parametrize("kind", ["transaction", "batch", "collection", "searchset"])
def test_bundles_that_are_envelopes_are_taken_apart_and_their_request_is_not_sent(kind: str) -> None:
    items, reader = read(bundle(patient("p1"), resource("Observation", "o1"), kind=kind))
    assert [sent(item) for item in items] == [
        {"fullUrl": "http://old.example/fhir/Patient/p1", "resource": patient("p1")},
        {"fullUrl": "http://old.example/fhir/Observation/o1", "resource": resource("Observation", "o1")},
    ]
    assert [(item.line, item.index) for item in items] == [(7, 0), (7, 1)]
    assert (reader.facts.lines, reader.facts.resources) == (1, 2)


@pytest.mark.parametrize("kind", ["document", "message", "history", "transaction-response", "no such type"])
def test_any_other_bundle_is_a_resource_and_is_validated_by_the_service(kind: str) -> None:
    line = bundle(patient("p1"), kind=kind, id="b1")
    [item], _ = read(line)
    assert sent(item) == {"fullUrl": "https://sluice.invalid/fhir/Bundle/b1", "resource": line}
    assert item.index is None


def test_a_plain_line_gets_a_stable_full_url_of_its_own_type_and_id() -> None:
    [item], _ = read(patient("p1"))
    assert sent(item)["fullUrl"] == "https://sluice.invalid/fhir/Patient/p1"


@pytest.mark.parametrize("own", ["", None])
def test_an_entry_whose_full_url_was_emptied_gets_one(own: str | None) -> None:
    [item], _ = read(
        {"resourceType": "Bundle", "type": "batch", "entry": [{"fullUrl": own, "resource": patient("p1")}]}
    )
    assert sent(item)["fullUrl"] == "https://sluice.invalid/fhir/Patient/p1"


@pytest.mark.parametrize("identifier", [None, "", "not an id", "x" * 65, 'x"y', 5])
def test_a_resource_without_a_usable_id_is_sent_with_a_full_url_of_its_position(identifier: Any) -> None:
    line = {"resourceType": "Patient", "id": identifier}
    urls = [sent(read(line, file)[0][0])["fullUrl"] for file in ("a.ndjson", "a.ndjson.zst", "b.ndjson")]
    assert urls[0] == urls[1] != urls[2]
    assert urls[0].startswith("urn:uuid:")


def test_the_bytes_of_a_resource_are_not_touched() -> None:
    raw = b'{ "id" : "p1","resourceType":"Patient", "a": [1.50, 1E2, -0.0,"\\u00fc \xc3\xbc]}\\""], "b":"urn:uuid:1" }'
    line = (
        b'{"resourceType":"Bundle","type":"collection","entry":[ {"resource": %b ,"fullUrl":"urn:uuid:\\u0031"} ]}'
        % raw
    )
    [item], _ = read(line)
    assert item.text == b'{"fullUrl":"urn:uuid:1","resource":%b}' % raw
    assert item.text[item.resource : -1] == raw
    assert key_of(raw) == ("Patient", "Patient/p1")


def test_entries_that_carry_nothing_are_counted_and_not_sent() -> None:
    line = bundle(patient("p1"))
    line["entry"] += [
        {"request": {"method": "DELETE", "url": "Patient/p2"}},
        {"fullUrl": "urn:uuid:1"},
        {"resource": None},
        {"resource": {"resourceType": "OperationOutcome"}, "search": {"mode": "outcome"}},
    ]
    items, reader = read(line)
    assert len(items) == 1
    assert reader.facts.skipped == 4


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"resourceType":"Patient"', "not-json"),
        (b'{"resourceType":"Bundle","type":"batch","entry":[{]}', "not-json"),
        (b"[]", "not-a-resource"),
        (b'{"resourceType":5}', "not-a-resource"),
        (b'{"resourceType":"pat ient","id":"x"}', "invalid-resource-type"),
        (b'{"resourceType":"Bundle","type":"batch","entry":[{"request":["DELETE"]}]}', "not-a-bundle"),
    ],
)
def test_a_line_that_is_no_resource_is_an_error_with_its_place(line: bytes, expected: str) -> None:
    with pytest.raises(DataError) as caught:
        read(line)
    assert (caught.value.reference, caught.value.context) == (expected, "a.ndjson:7")


def test_an_entry_that_is_no_resource_is_an_error_with_its_place() -> None:
    with pytest.raises(DataError) as caught:
        read(bundle(patient("p1"), {"id": "x"}))
    assert (caught.value.reference, caught.value.context) == ("not-a-resource", "a.ndjson:7 entry 1")


def test_a_line_longer_than_the_limit_gives_the_same_items_one_by_one(tmp_path: Path) -> None:
    line = bundle(*[resource("Observation", f"o{n}", value=1.5) for n in range(50)])
    path = tmp_path / "a.ndjson"
    path.write_bytes(json.dumps(line).encode() + b"\n" + json.dumps(patient("p1")).encode())
    short, long = ItemReader("a.ndjson"), ItemReader("a.ndjson")
    as_one = list(short.groups(lines_with_long(path, limit=1 << 20, spool=tmp_path)))
    one_by_one = list(long.groups(lines_with_long(path, limit=100, spool=tmp_path)))
    assert [len(group) for group in as_one] == [50, 1]
    assert [len(group) for group in one_by_one] == [1] * 51
    assert [sent(item) for group in one_by_one for item in group] == [sent(item) for group in as_one for item in group]
    assert short.facts == long.facts
