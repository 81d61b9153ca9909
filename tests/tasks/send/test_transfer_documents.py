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
from tasks.send.transfer.documents import BinaryJson, Transfer, read_documents
from tasks.shared.http_old.body import FileBody

ARCHIVE = Archive(1000, "bb" * 20, ())
OTHER = Archive(1000, "cc" * 20, ())
HERE = Transfer("P", "o")
DATE = "2026-03-02T12:00:00+00:00"


def test_ids_are_uuid5_of_project_and_organization() -> None:
    transfers = [HERE, Transfer("P", "o2"), Transfer("P2", "o"), Transfer("P|o", "")]
    ids = [one for transfer in transfers for one in (transfer.document_id, transfer.binary_id)]
    assert len(set(ids)) == 8
    assert all(uuid.UUID(one).version == 5 for one in ids)
    assert HERE.document_id == "bccf374c-a616-55d8-a13c-ca1814aba4e5"


@pytest.mark.parametrize(("project", "value"), [("A-1", "A-1"), ("A & B", "A & B"), ("a,b|c$d\\e", r"a\,b\|c\$d\\e")])
def test_the_search_is_that_of_the_receiving_process(project: str, value: str) -> None:
    query = parse_qs(Transfer(project, "o").query, strict_parsing=True)
    assert query == {"identifier": [f"http://medizininformatik-initiative.de/sid/project-identifier|{value}"]}


def test_an_attachment_larger_than_an_unsigned_int_of_fhir_goes_without_its_size() -> None:
    for size, there in ((2**31 - 1, True), (2**31, False)):
        document = json.loads(HERE.document("d", Archive(size, "bb" * 20, ()), DATE))
        assert ("size" in document["content"][0]["attachment"]) == there


def test_a_document_stands_whatever_its_date_and_what_the_server_added() -> None:
    document = json.loads(HERE.document("d", ARCHIVE, DATE))
    found = document | {"meta": {"versionId": "7"}, "date": "2020-01-01T00:00:00Z"}
    assert HERE.stands(found, ARCHIVE)
    assert HERE.points_to(found, ARCHIVE)
    assert HERE.owns(found)
    assert not HERE.stands(found, OTHER)
    assert not HERE.points_to(found, OTHER)
    assert not HERE.stands(document | {"status": "superseded"}, ARCHIVE)
    assert not Transfer("P", "o2").owns(found)
    named = [{"display": "x"}, document["author"][0] | {"display": "DIC"}]
    assert HERE.owns(document | {"author": named})
    assert not any(HERE.owns({"author": author}) for author in (None, "o", [], ["o"]))
    assert not any(HERE.points_to({"content": content}, ARCHIVE) for content in (None, [], ["x"], [{"attachment": 1}]))


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b'{"resourceType":"Bundle","type":"history"}', b'{"resourceType":"OperationOutcome"}',
     b'{"resourceType":"Bundle","type":"searchset","entry":[{"resource":{"resourceType":"DocumentReference"}}]}'],
)  # fmt: skip
def test_what_is_no_result_of_a_search_is_told_apart(body: bytes) -> None:
    assert read_documents(body) is None


def test_hits_keep_their_order_and_outcomes_are_none() -> None:
    resources = [
        {"resourceType": "OperationOutcome", "issue": []},
        {"resourceType": "DocumentReference", "id": "z"},
        {"resourceType": "DocumentReference", "id": "a"},
    ]
    body = {"resourceType": "Bundle", "type": "searchset", "entry": [{"resource": one} for one in resources]}
    hits = read_documents(json.dumps(body).encode())
    assert hits is not None
    assert [hit["id"] for hit in hits] == ["z", "a"]
    assert read_documents(b'{"resourceType":"Bundle","type":"searchset","total":0}') == []


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
