"""The one reader of Bundles: each entry with the bytes it came in, however the Bundle is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.shared.fhir.entries import RawEntry, member_entries, raw_entries, read_bundle
from tasks.shared.fhir.reading import UnusableError

PATIENT = b'{"resourceType":"Patient","id":"p1","x":[1.50,-0.0,1E2]}'


def bundle(*entries: bytes, around: bytes = b"") -> bytes:
    return b'{"resourceType":"Bundle","type":"batch"%b,"entry":[%b]}' % (around, b",".join(entries))


def entry_parts(line: bytes) -> list[Any]:
    """Return the parts of each entry, or the reference of its error."""
    read = read_bundle(line)
    assert read is not None
    return [
        (entry.full_url, entry.request, entry.search, bytes(entry.resource)) if isinstance(entry, RawEntry)
        else entry.reference
        for entry in read.entries
    ]  # fmt: skip


resources = st.builds(
    lambda number, text: f'{{"resourceType":"Basic","id":"b","a":{number},"b":{json.dumps(text)}}}'.encode(),
    st.sampled_from(["1.50", "1E2", "-0.0", "null", '{"resourceType":"Patient"}', "[]"]),
    st.text(max_size=5),
)  # fmt: skip
entries = st.builds(
    lambda resource, more: b"{%b}" % b",".join([b'"resource":' + resource, *more]),
    resources,
    st.lists(
        st.sampled_from(
            [
                b'"fullUrl":"urn:uuid:1"',
                b'"request":{"method":"PUT","url":"Basic/b","ifMatch":"W/1"}',
                b'"search":{"mode":"match","score":1.0}',
                b'"response":{"status":"200"}',
            ]
        ),
        unique=True,
    ),
)


@given(st.lists(entries, max_size=4), st.sampled_from([b" ", b"\t", b"\n"]))
def test_both_ways_to_read_a_bundle_find_the_same(given_ones: list[bytes], space: bytes) -> None:
    line = bundle(*given_ones)
    assert raw_entries(line) is not None
    spaced = line.replace(b'"entry":[', b'"entry"' + space + b":[", 1)
    assert raw_entries(spaced) is None
    assert entry_parts(line) == entry_parts(spaced)
    assert len(entry_parts(line)) == len(given_ones)


@given(st.lists(entries, max_size=4))
def test_members_are_those_of_the_resource_text(given_ones: list[bytes]) -> None:
    raw, read = raw_entries(bundle(*given_ones)), member_entries(bundle(*given_ones))
    assert raw is not None
    assert read is not None
    for one, other in zip(raw.entries, read.entries, strict=True):
        text = b"{%b}" % b",".join(json.dumps(k).encode() + b":" + bytes(v) for k, v in (other.resource or {}).items())
        assert text == bytes(one.resource)


@pytest.mark.parametrize(
    "line",
    [
        bundle(b'{"resource":%b,"resource":%b}' % (PATIENT, PATIENT)),
        bundle(b'{"fullUrl":"a","resource":%b,"fullUrl":"b"}' % PATIENT),
        bundle(b'{"resource":%b,"resourc\\u0065":%b}' % (PATIENT, PATIENT)),
    ],
)
def test_a_key_twice_in_an_entry_is_never_passed_over(line: bytes) -> None:
    assert raw_entries(line) is None
    assert member_entries(line) is None
    assert entry_parts(line) == ["repeated-key"]


@pytest.mark.parametrize(
    "line",
    [
        bundle(b'{"resource":%b}' % PATIENT)[:-1] + b',"entry":[]}',
        bundle(b'{"resource":%b}' % PATIENT, around=b',"id":"a","id":"b"'),
        b'{"entry":[],"resourceType":"Bundle","type":"batch","entry":[{"resource":%b}]}' % PATIENT,
    ],
)
def test_a_key_twice_in_the_bundle_is_an_error(line: bytes) -> None:
    assert raw_entries(line) is None
    with pytest.raises(UnusableError, match="repeated-key"):
        read_bundle(line)


def test_a_key_twice_in_a_resource_is_no_reading_by_members() -> None:
    line = bundle(b'{"resource":{"resourceType":"Patient","id":"a","id":"b"}}')
    assert raw_entries(line) is not None
    assert member_entries(line) is None


@pytest.mark.parametrize(
    ("entry", "reference"),
    [
        (b'{"resourse":%b}' % PATIENT, "not-an-entry"),
        (b'{"fullUrl":7,"resource":%b}' % PATIENT, "not-an-entry"),
        (b'{"request":[],"resource":%b}' % PATIENT, "not-an-entry"),
    ],
)
def test_one_bad_entry_leaves_the_others(entry: bytes, reference: str) -> None:
    good = b'{"resource":%b}' % PATIENT
    assert entry_parts(bundle(good, entry, good)) == [
        (None, None, None, PATIENT),
        reference,
        (None, None, None, PATIENT),
    ]


@pytest.mark.parametrize("more", [b'"link":[]', b'"extension":[{"url":"x"}]', b'"_fullUrl":{"id":"x"}'])
def test_elements_that_are_not_read_change_nothing(more: bytes) -> None:
    line = bundle(b'{"resource":%b,%b}' % (PATIENT, more))
    assert raw_entries(line) is None
    assert entry_parts(line) == [(None, None, None, PATIENT)]


@pytest.mark.parametrize("line", [PATIENT, b'{"resourceType":"List","id":"l","entry":[{"item":{"reference":"a"}}]}'])
def test_a_resource_of_another_type_is_no_bundle(line: bytes) -> None:
    assert raw_entries(line) is None
    assert read_bundle(line) is None


@pytest.mark.parametrize("line", [bundle().replace(b'"entry"', b'"entires"'), bundle(around=b',"x":[{"resource":%b}]')])
def test_a_resource_outside_the_entries_is_not_passed_over(line: bytes) -> None:
    with pytest.raises(UnusableError, match="not-a-bundle"):
        read_bundle(line.replace(b'"entires":[]', b'"entires":[%b]' % PATIENT).replace(b"%b", PATIENT))


def test_the_entries_of_a_resource_inside_are_not_those_of_the_bundle() -> None:
    inner = b'{"resourceType":"Bundle","id":"i","entry":[{"resource":%b}]}' % PATIENT
    assert entry_parts(bundle(b'{"resource":%b}' % inner)) == [(None, None, None, inner)]
