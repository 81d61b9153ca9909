"""Original ids that survive are counted by place (issue 4, item 1)."""

from __future__ import annotations

import json
from typing import Any

from tasks.pseudonymizer.answer_check import outline_of
from tasks.pseudonymizer.surviving_ids import survivors
from tests.peers.data import identified as bundle
from tests.peers.data import observation, patient


def count(sent: dict[str, Any], received: dict[str, Any]) -> dict[str, int]:
    given, answer = json.dumps(sent).encode(), json.dumps(received).encode()
    found = survivors(outline_of(given, sent=True), outline_of(answer))
    return {place: number for place, number in found.items() if number}


SENT = bundle("b", patient("p"), observation("o1", "p"), observation("o2", "p"))


def test_every_place_is_counted() -> None:
    assert count(SENT, SENT) == {"id": 4, "fullUrl": 3, "request.url": 3, "reference": 2}


def test_nothing_is_found_where_everything_was_replaced() -> None:
    received = bundle("B", patient("P"), observation("O1", "P"), observation("O2", "P"))
    assert count(SENT, received) == {}


def test_each_place_counts_for_itself() -> None:
    received = bundle("B", patient("P"), observation("O1", "P"), observation("O2", "P"))
    received["entry"][1]["fullUrl"] = "urn:uuid:o1"
    assert count(SENT, received) == {"fullUrl": 1}
    received["entry"][2]["request"]["url"] = "Observation/o2"
    assert count(SENT, received) == {"fullUrl": 1, "request.url": 1}
    received["entry"][2]["resource"]["subject"]["reference"] = "http://x.example/fhir/Patient/p/_history/2"
    assert count(SENT, received) == {"fullUrl": 1, "request.url": 1, "reference": 1}
    received["entry"][2]["resource"]["id"] = "o2"
    assert count(SENT, received) == {"fullUrl": 1, "request.url": 1, "reference": 1, "id": 1}


def test_an_unchanged_reference_to_a_resource_of_another_line_counts() -> None:
    sent = observation("o", "p", performer=[{"reference": "Organization/org"}])
    assert count(sent, observation("O", "P", performer=[{"reference": "Organization/org"}])) == {"reference": 1}
    assert count(sent, observation("O", "P", performer=[{"reference": "Organization/ORG"}])) == {}


def test_the_addresses_of_entries_that_are_no_bundle_s_do_not_count() -> None:
    sent = {"resourceType": "List", "id": "l", "entry": [{"fullUrl": "x/l", "item": {"reference": "Patient/p"}}]}
    assert count(sent, sent) == {"id": 1, "reference": 1}


def test_emptied_urls_and_entries_without_resource_are_no_survivors() -> None:
    received = {"resourceType": "Bundle", "entry": [{"fullUrl": None}, {"request": {"url": ""}}, {"resource": None}]}
    assert count(SENT, received) == {}
