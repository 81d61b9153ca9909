"""Classification of answers (document 3 §7 "Classification")."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.send.verdict import Fate, judge, judge_entries
from tasks.shared.errors import ServiceError
from tasks.shared.http.answer import Answer
from tests.peers.fhir import outcome, response

VERSION = "HAPI-0550: HAPI-0823: The operation has failed with a version constraint failure. This generally means that"
FORCED_ID = "HAPI-0550: HAPI-0826: The operation has failed with a client-assigned ID constraint failure."
UNIQUE = "HAPI-0824: The operation has failed with a unique index constraint failure. This probably means that"
MISSING = "HAPI-1094: Resource Patient/canary not found, specified in path: Observation.subject"
DELETED = "HAPI-1096: Resource Patient/canary is deleted, specified in path: Observation.subject"
INTEGRITY = "Referential integrity violated. Resource `Patient/canary` doesn't exist."


@pytest.mark.parametrize(
    ("status", "body", "fate"),
    [
        (400, outcome("processing", MISSING), Fate.MISSING_TARGET),
        (400, outcome("processing", MISSING.removeprefix("HAPI-1094: ")), Fate.MISSING_TARGET),
        (400, outcome("processing", DELETED), Fate.MISSING_TARGET),
        (409, outcome("conflict", INTEGRITY), Fate.MISSING_TARGET),
        (409, outcome("conflict", text=INTEGRITY), Fate.MISSING_TARGET),
        (422, outcome("not-found"), Fate.MISSING_TARGET),
        (400, outcome("invalid", "Unknown element 'nmae'"), Fate.REFUSED),
        (400, b"", Fate.REFUSED),
        (400, b"<html>not found</html>", Fate.REFUSED),
        (422, outcome("invariant"), Fate.REFUSED),
        (412, outcome("processing", "Failed to match"), Fate.REFUSED),
        (409, b"", Fate.REFUSED),
        (409, outcome("business-rule"), Fate.REFUSED),
        (409, outcome("processing", UNIQUE), Fate.REFUSED),
        (409, outcome("processing", VERSION), Fate.CONFLICT),
        (409, outcome("processing", FORCED_ID), Fate.CONFLICT),
        (409, outcome("conflict"), Fate.CONFLICT),
        (409, outcome("lock-error"), Fate.CONFLICT),
        (412, outcome("conflict"), Fate.CONFLICT),
        (412, outcome("processing", "the current version is 3"), Fate.CONFLICT),
        (400, outcome("processing", VERSION), Fate.REFUSED),
        (413, b"<html>", Fate.TOO_LARGE),
        (201, b"", Fate.SENT),
        (503, b"", Fate.CONFLICT),
        (429, b"", Fate.CONFLICT),
        (404, outcome("not-supported"), Fate.REFUSED),
    ],
)
def test_an_answer_is_classified_by_status_and_codes_or_else_by_its_text(status: int, body: bytes, fate: Fate) -> None:
    verdict = judge(status, body)
    assert verdict.fate is fate
    assert "canary" not in repr(verdict)


@given(st.integers(400, 499), st.binary(max_size=100))
def test_no_answer_of_a_server_is_too_strange_to_be_judged(status: int, body: bytes) -> None:
    assert judge(status, body).status == status


def answer(body: bytes, status: int = 200) -> Answer:
    import httpx

    return Answer(status, httpx.Headers({"Content-Type": "application/fhir+json"}), body)


URL = "https://store.example/fhir"


def keys(count: int) -> list[str]:
    return [f"Observation/o{number}" for number in range(count)]


def results(*statuses: str) -> bytes:
    return response([{"response": {"status": status}} for status in statuses])


def test_an_answer_with_a_2xx_for_every_entry_accepts_all() -> None:
    assert judge_entries(answer(results("200 OK", "201", "204 No Content")), keys(3), URL) is None


def test_the_status_of_each_entry_is_read() -> None:
    failed = {"response": {"status": "422 Unprocessable", "outcome": json.loads(outcome("invariant"))}}
    missing = {"response": {"status": "409", "outcome": json.loads(outcome("conflict", INTEGRITY))}}
    verdicts = judge_entries(answer(response([{"response": {"status": "200"}}, failed, missing])), keys(3), URL)
    assert verdicts is not None
    assert [verdict.fate for verdict in verdicts] == [Fate.SENT, Fate.REFUSED, Fate.MISSING_TARGET]
    assert verdicts[1].codes == ("invariant",)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>login canary</html>",
        b'{"resourceType":"Bundle","type":"transaction-response","entry":[{"resp',
        b"[]",
        b'{"resourceType":"Patient","id":"canary"}',
        b'{"resourceType":"Bundle","type":"searchset","entry":[]}',
        results("200"),
        results("200", "200", "200"),
        response([{}, {}]),
        results("200", "fine"),
    ],
)
def test_an_answer_that_does_not_answer_every_entry_is_an_error(body: bytes) -> None:
    with pytest.raises(ServiceError) as caught:
        judge_entries(answer(body), keys(2), URL)
    assert caught.value.reference == "send-answer"
    assert "canary" not in caught.value.render()
