"""The one reader of Bundles: each entry with the bytes it came in, however the Bundle is written."""

from __future__ import annotations

import pytest

from tasks.shared.fhir.entries import read_bundle
from tasks.shared.fhir.reading import UnusableError

PATIENT = b'{"resourceType":"Patient","id":"p1","x":[1.50,-0.0,1E2]}'


def bundle(*entries: bytes) -> bytes:
    return b'{"resourceType":"Bundle","type":"batch","entry":[%b]}' % b",".join(entries)


def test_resources_keep_their_bytes_whatever_stands_around_them() -> None:
    entries = [
        b'{"resource":%b}' % PATIENT,
        b'{"fullUrl":"urn:uuid:1","resource": %b ,"link":[],"extension":[{"url":"x"}]}' % PATIENT,
    ]
    for line in (bundle(*entries), bundle(*entries).replace(b'"entry":[', b'"entry" : [\t')):
        read = read_bundle(line)
        assert read is not None
        assert (read.type, read.id, [*read.root]) == ("batch", None, ["resourceType", "type"])
        assert [(one.full_url, bytes(one.resource)) for one in read.entries] == [
            (None, PATIENT), ("urn:uuid:1", PATIENT),
        ]  # fmt: skip


@pytest.mark.parametrize("entry", [
    b"{}", b'{"resource":null}', b'{"request":{"method":"DELETE","url":"Patient/p"}}',
    b'{"resource":%b,"search":{"mode":"outcome","score":1.0}}' % PATIENT,
])  # fmt: skip
def test_some_entries_carry_nothing(entry: bytes) -> None:
    read = read_bundle(bundle(entry))
    assert read is not None
    assert read.entries[0].carries_nothing


@pytest.mark.parametrize("line", [PATIENT, b'{"resourceType":"List","id":"l","entry":[{"item":{"reference":"a"}}]}'])
def test_a_resource_of_another_type_is_no_bundle(line: bytes) -> None:
    assert read_bundle(line) is None


@pytest.mark.parametrize(
    ("line", "reference"),
    [
        (b"<html>", "not-json"),
        (b"[]", "not-a-resource"),
        (b"{}", "not-a-resource"),
        (b'{"resourceType":5}', "not-a-resource"),
        (b'{"resourceType":"Bundle","entry":{}}', "not-a-bundle"),
        (bundle(b'{"fullUrl":7,"resource":%b}' % PATIENT), "not-a-bundle"),
        (bundle(b'{"request":[]}'), "not-a-bundle"),
        (bundle(b"null"), "not-a-bundle"),
    ],
)
def test_what_cannot_be_read_is_refused(line: bytes, reference: str) -> None:
    with pytest.raises(UnusableError, match=reference):
        read_bundle(line)
