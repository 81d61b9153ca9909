"""The one reader of Bundles: every value byte for byte; and what identifies a person."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.shared.errors import DataError
from tasks.shared.fhir.bundles import close_bundle, open_bundle, unwrapped
from tasks.shared.fhir.persons import Identifying, Kind, identifying
from tasks.shared.fhir.resource import head_of, references_in, target_of
from tests.peers.data import bundle, patient, resource

SPELLED = (
    b'{"resourceType":"Bundle","id":"b","type":"transaction","total":1.50,'
    b'"entry":[{"fullUrl":"u","resource":{"resourceType":"Patient","id":"p","v":1E2,"w":-0.0,"x":"\\u00fc"}},{}]}'
)


def test_opening_and_closing_changes_no_byte_of_a_value() -> None:
    opened = open_bundle(SPELLED)
    assert opened is not None
    assert (opened.type, len(opened.entries)) == ("transaction", 2)
    assert close_bundle(opened.members, opened.entries) == SPELLED
    assert open_bundle(b'{"resourceType":"Patient"}') is None


@given(st.lists(st.sampled_from(["Patient", "Condition", "Observation"]), max_size=5))
def test_a_bundle_is_the_sum_of_its_parts(kinds: list[str]) -> None:
    text = json.dumps(bundle(*[resource(kind, f"i{n}") for n, kind in enumerate(kinds)])).encode()
    opened = open_bundle(text)
    assert opened is not None
    for at in range(len(kinds) + 1):
        first, second = (close_bundle(opened.members, part) for part in (opened.entries[:at], opened.entries[at:]))
        halves = [half.entries for half in (open_bundle(first), open_bundle(second)) if half is not None]
        assert halves == [opened.entries[:at], opened.entries[at:]]


@pytest.mark.parametrize(
    ("kind", "more", "found"),
    [
        *((kind, {}, [0, 1]) for kind in ("collection", "searchset", "transaction", "batch")),
        *((kind, {}, [None]) for kind in ("document", "message")),
        *((kind, {}, "bundle-type") for kind in ("history", "transaction-response", "unknown", None)),
    ],
)
def test_envelopes_are_unwrapped_and_other_bundles_are_data_or_none(kind: Any, more: Any, found: Any) -> None:
    line = json.dumps(bundle(patient("a"), patient("b"), kind=kind)).encode()
    if isinstance(found, str):
        with pytest.raises(DataError) as caught:
            [*unwrapped(line)]
        assert caught.value.reference == found
    else:
        assert [one.entry for one in unwrapped(line)] == found


def test_entries_without_data_are_left_out() -> None:
    entries = [
        {"request": {"method": "DELETE", "url": "Patient/x"}, "resource": patient("x")}, {"resource": None}, {},
        {"search": {"mode": "outcome"}, "resource": resource("OperationOutcome", "o")}, {"resource": patient("p")},
    ]  # fmt: skip
    line = json.dumps({"resourceType": "Bundle", "type": "batch", "entry": entries}).encode()
    assert [one.entry for one in unwrapped(line)] == [4]


@pytest.mark.parametrize("text", [b"[]", b"{}", b'{"resourceType":"x"}', b'{"resourceType":"Bundle","entry":{}}', b"{"])
def test_what_is_no_resource_is_an_error(text: bytes) -> None:
    with pytest.raises(DataError):
        [*unwrapped(text)]


def test_head_profiles_and_references_are_read_wherever_they_stand() -> None:
    text = json.dumps(
        {"meta": {"profile": ["http://p|1.0", 7]}, "id": "i" * 70, "resourceType": "Basic",
         "author": {"reference": 'a"b'}, "subject": {"reference": "Patient/p"}}
    ).encode()  # fmt: skip
    assert head_of(text) == ("Basic", "i" * 70)
    assert references_in(text) == {'a"b', "Patient/p"}


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("Patient/p", "Patient/p"), ("https://h-x/fhir/Patient/p", "Patient/p"), ("Patient/p/_history/2", "Patient/p"),
        ("#p", None), ("urn:uuid:1", None), ("Patient?identifier=s|v", None), ("p", None), ("patient/p", None),
    ],
)  # fmt: skip
def test_the_target_of_a_reference(reference: str, target: str | None) -> None:
    assert target_of(reference) == target


def test_everything_that_identifies_a_person_is_found_with_its_path() -> None:
    one = {
        "resourceType": "Patient", "id": "no", "gender": "female", "birthDate": "1970-01-31",
        "text": {"status": "generated", "div": "<div>D</div>"},
        "identifier": [{"system": "s", "value": "v", "assigner": {"display": "no"}}],
        "name": [{"use": "no", "family": "F", "given": ["G", "H"], "prefix": ["Dr."],
                  "_family": {"extension": [{"url": "no", "valueString": "Maiden"}]}}],
        "telecom": [{"system": "phone", "value": "T"}], "photo": [{"contentType": "no", "data": "P"}],
        "address": [{"line": ["L"], "city": "C", "postalCode": "1"}],
        "contact": [{"name": {"text": "N"}}],
        "contained": [{"resourceType": "Practitioner", "name": [{"text": "Q"}]},
                      {"resourceType": "Organization", "name": "no"}],
    }  # fmt: skip
    found = {(value.path, value.kind, value.value) for value in identifying(one)}
    assert found == {
        ("Patient.birthDate", Kind.BIRTH_DATE, "1970-01-31"), ("Patient.text.div", Kind.NARRATIVE, "<div>D</div>"),
        ("Patient.identifier.value", Kind.IDENTIFIER, "v"), ("Patient.name.family", Kind.NAME, "F"),
        ("Patient.name.given", Kind.NAME, "G"), ("Patient.name.given", Kind.NAME, "H"),
        ("Patient.name.prefix", Kind.NAME, "Dr."), ("Patient.name._family.extension.valueString", Kind.NAME, "Maiden"),
        ("Patient.telecom.value", Kind.TELECOM, "T"), ("Patient.photo.data", Kind.PHOTO, "P"),
        ("Patient.address.line", Kind.ADDRESS, "L"), ("Patient.address.city", Kind.PLACE, "C"),
        ("Patient.address.postalCode", Kind.PLACE, "1"), ("Patient.contact.name.text", Kind.NAME, "N"),
        ("Patient.contained.Practitioner.name.text", Kind.NAME, "Q"),
    }  # fmt: skip
    assert next(identifying({"resourceType": "Person", "identifier": [{"system": "s", "value": "v"}]})) == Identifying(
        "Person.identifier.value", Kind.IDENTIFIER, "v", "s"
    )
    assert not [*identifying({"resourceType": "Organization", "name": "no"})]
    assert not [*identifying({"resourceType": "Patient", "birthDate": "1970"})]
