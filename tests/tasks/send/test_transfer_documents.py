"""Binary and DocumentReference of a transfer (document 3 §7)."""

from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.send.transfer.archive import Archive
from tasks.send.transfer.documents import BinaryJson, Hit, Transfer, read_hits
from tasks.shared.http.body import FileBody

ARCHIVE = Archive(1000, "aa" * 32, "bb" * 20)
OTHER = Archive(1000, "cc" * 32, "bb" * 20)
HERE = Transfer("P", "o")
DATE = "2026-03-02T12:00:00+00:00"


def test_ids_are_uuid5_of_project_organization_and_for_the_binary_content() -> None:
    transfers = [HERE, Transfer("P", "o2"), Transfer("P2", "o"), Transfer("P|o", "")]
    documents = [transfer.document_id for transfer in transfers]
    binaries = [transfer.binary_id(archive) for transfer in transfers for archive in (ARCHIVE, OTHER)]
    assert len({*documents, *binaries}) == 12
    assert all(uuid.UUID(one).version == 5 for one in documents + binaries)
    assert HERE.binary_id(ARCHIVE) == Transfer("P", "o").binary_id(Archive(1, "aa" * 32, ""))


def test_ids_stay_the_same_in_later_versions() -> None:
    assert HERE.document_id == "bccf374c-a616-55d8-a13c-ca1814aba4e5"
    assert HERE.binary_id(ARCHIVE) == "e659c184-7d6a-5e48-a2ad-e4ca48443acb"


@pytest.mark.parametrize(("project", "value"), [("A-1", "A-1"), ("A & B", "A & B"), ("a,b|c$d\\e", r"a\,b\|c\$d\\e")])
def test_the_search_is_that_of_the_receiving_process(project: str, value: str) -> None:
    query = parse_qs(Transfer(project, "o").query, strict_parsing=True)
    assert query == {"identifier": [f"http://medizininformatik-initiative.de/sid/project-identifier|{value}"]}


def test_an_attachment_larger_than_an_unsigned_int_of_fhir_goes_without_its_size() -> None:
    for size, there in ((2**31 - 1, True), (2**31, False)):
        document = json.loads(HERE.document("d", Archive(size, "aa" * 32, "bb" * 20), DATE))
        assert ("size" in document["content"][0]["attachment"]) == there


def test_a_document_stands_whatever_its_date_and_what_the_server_added() -> None:
    document = json.loads(HERE.document("d", ARCHIVE, DATE))
    hit = Hit("d", document | {"meta": {"versionId": "7"}, "date": "2020-01-01T00:00:00Z"})
    assert HERE.stands(hit, ARCHIVE)
    assert HERE.owns(hit)
    assert not HERE.stands(hit, OTHER)
    assert not HERE.stands(Hit("d", document | {"status": "superseded"}), ARCHIVE)
    assert not Transfer("P", "o2").owns(hit)
    named = [{"display": "x"}, document["author"][0] | {"display": "DIC"}]
    assert HERE.owns(Hit("d", document | {"author": named}))
    assert not any(HERE.owns(Hit("d", {"author": author})) for author in (None, "o", [], ["o"]))


def test_a_document_arrived_with_what_a_server_may_change() -> None:
    document = json.loads(HERE.document("d", ARCHIVE, DATE))
    (content,) = document["content"]
    here = content["attachment"] | {"url": f"http://h/fhir/{content['attachment']['url']}/_history/1", "creation": DATE}
    server = {
        "meta": {"versionId": "1"},
        "text": {"status": "generated", "div": "<div/>"},
        "date": "2026-03-02T12:00:00Z",
    }
    author = [document["author"][0] | {"display": "DIC", "reference": "Organization/1"}]
    hit = Hit("d", document | server | {"author": author, "content": [content | {"attachment": here}]})
    assert HERE.arrived(hit, ARCHIVE, "http://h/fhir")
    assert not HERE.arrived(hit, OTHER, "http://h/fhir")


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("Binary/b", ["b"]),
        ("http://h/fhir/Binary/b", ["b"]),
        ("Binary/b/_history/3", ["b"]),
        ("http://elsewhere/fhir/Binary/b", []),
        ("Patient/b", []),
        ("Binary/", []),
        ("Binary/b/c", []),
        (None, []),
        (7, []),
    ],
)
def test_a_binary_is_ours_to_remove_only_on_this_server(url: object, found: list[str]) -> None:
    hit = Hit("d", {"content": [{"attachment": {"url": url}}, {"attachment": 1}, 2]})
    assert hit.binaries("http://h/fhir") == found
    assert Hit("d", {"content": "x"}).binaries("http://h/fhir") == []


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b'{"resourceType":"Bundle","type":"history"}', b'{"resourceType":"OperationOutcome"}',
     b'{"resourceType":"Bundle","type":"searchset","entry":[{"resource":{"resourceType":"DocumentReference"}}]}'],
)  # fmt: skip
def test_what_is_no_result_of_a_search_is_told_apart(body: bytes) -> None:
    assert read_hits(body) is None


def test_hits_keep_their_order_and_outcomes_are_none() -> None:
    resources = [
        {"resourceType": "OperationOutcome", "issue": []},
        {"resourceType": "DocumentReference", "id": "z"},
        {"resourceType": "DocumentReference", "id": "a"},
    ]
    body = {"resourceType": "Bundle", "type": "searchset", "entry": [{"resource": one} for one in resources]}
    hits = read_hits(json.dumps(body).encode())
    assert hits is not None
    assert [hit.id for hit in hits] == ["z", "a"]
    assert read_hits(b'{"resourceType":"Bundle","type":"searchset","total":0}') == []


class _Pieces(FileBody):
    """Content in pieces of any size."""

    def __init__(self, pieces: list[bytes]) -> None:
        super().__init__(Path("nowhere"), sum(map(len, pieces)))
        self._pieces = pieces

    def pieces(self):  # type: ignore[no-untyped-def]
        yield from self._pieces


@given(st.lists(st.binary(max_size=50), max_size=6))
def test_base64_is_made_in_pieces_and_its_length_is_known_before(pieces: list[bytes]) -> None:
    body = BinaryJson("b", _Pieces(pieces))
    for _ in range(2):
        data = b"".join(body.pieces())
        assert len(data) == body.length
        document = json.loads(data)
        assert base64.b64decode(document.pop("data"), validate=True) == b"".join(pieces)
        assert document == {"resourceType": "Binary", "id": "b", "contentType": "application/zip"}
