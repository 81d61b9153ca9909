"""Classification of answers (document 3 §7 "Classification")."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.send.verdict import Fate, judge
from tests.peers.fhir import outcome

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
    ],
)
def test_an_answer_is_classified_by_status_and_codes_or_else_by_its_text(status: int, body: bytes, fate: Fate) -> None:
    verdict = judge(status, body)
    assert verdict.fate is fate
    assert "canary" not in repr(verdict)


@given(st.integers(400, 499), st.binary(max_size=100))
def test_no_answer_of_a_server_is_too_strange_to_be_judged(status: int, body: bytes) -> None:
    assert judge(status, body).status == status
