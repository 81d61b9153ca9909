from __future__ import annotations

import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.shared.http.answer import (
    ISSUE_CODES,
    TOKEN_OPERATION,
    Answer,
    BusyError,
    RefusedError,
    RequestContext,
    error_for,
    issue_codes,
    place,
)


def outcome(*codes: object) -> bytes:
    return json.dumps({"resourceType": "OperationOutcome", "issue": [{"code": code} for code in codes]}).encode()


def test_issue_codes_are_given_once_each_in_order() -> None:
    assert issue_codes(outcome("not-found", "invalid", "not-found")) == ("not-found", "invalid")


def test_a_code_outside_fhirs_list_is_text_from_the_service_and_is_left_out() -> None:
    assert issue_codes(outcome("Erika Mustermann", 7, None, ["invalid"], "invalid")) == ("invalid",)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"OperationOutcome",
        b'{"resourceType":"OperationOutcome"}',
        b'{"resourceType":"OperationOutcome","issue":{"code":"invalid"}}',
        b'{"resourceType":"Bundle","x":"OperationOutcome","issue":[{"code":"invalid"}]}',
        b'{"resourceType":"OperationOutcome","issue":["invalid", null, 3]}',
        b'["OperationOutcome"]',
        b'{"resourceType":"OperationOutcome","issue":[{"code":"inv\xff"}]}',
        b'{"resourceType":"OperationOutcome","issue":' + b"[" * 100_000,
    ],
)
def test_what_is_no_operation_outcome_has_no_issue_codes(body: bytes) -> None:
    assert issue_codes(body) == ()


@given(st.binary(max_size=200))
def test_any_bytes_give_codes_of_the_list_only(data: bytes) -> None:
    for body in (data, b'{"resourceType":"OperationOutcome","issue":' + data + b"}"):
        assert set(issue_codes(body)) <= ISSUE_CODES


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:geheim@host.test:8443/a/b?token=geheim#geheim", "https://host.test:8443/a/b"),
        ("http://[::1]:80/x", "http://[::1]:80/x"),
        ("http://[::1", "an unreadable URL"),
        ("http://h:geheim/", "an unreadable URL"),
    ],
)
def test_a_url_is_shown_without_user_query_and_fragment(url: str, shown: str) -> None:
    assert place(url) == shown


def test_an_answer_shows_its_status_only() -> None:
    answer = Answer(400, httpx.Headers({"Location": "geheim"}), b"geheim")
    assert repr(answer) == "Answer(status=400)"


@pytest.mark.parametrize(
    ("status", "reference"),
    [
        (401, "service-unauthorized"),
        (403, "service-forbidden"),
        (404, "service-not-found"),
        (407, "proxy-authentication"),
        (413, "service-too-large"),
        (409, "service-refused"),
        (500, "service-failed"),
        (302, "service-unexpected"),
    ],
)
def test_each_refusal_has_a_reference_a_hint_and_the_answer(status: int, reference: str) -> None:
    answer = Answer(status, httpx.Headers(), b"")
    error = error_for(answer, RequestContext("send", "load", "POST", "https://a.test/fhir?x=1"), transient={503})
    assert isinstance(error, RefusedError)
    assert (error.reference, error.status, error.operation) == (reference, status, "load")
    assert error.context == "POST https://a.test/fhir"
    assert error.hint
    assert "{" not in error.hint
    assert error.answer is answer
    assert (error.exit_code, error.transient) == (1, False)


def test_a_busy_service_says_how_long() -> None:
    answer = Answer(503, httpx.Headers({"Retry-After": "12"}), b"")
    error = error_for(answer, RequestContext("send", "load", "POST", "https://a.test/"), transient={503})
    assert isinstance(error, BusyError)
    assert (error.retry_after, error.answer is answer, error.exit_code) == (12, True, 3)


@pytest.mark.parametrize(("operation", "answered"), [("load", 200), (TOKEN_OPERATION, None)])
def test_an_error_of_an_answer_has_its_status_unless_it_is_of_an_issuer(operation: str, answered: int | None) -> None:
    answer = Answer(200, httpx.Headers(), b"")
    error = RefusedError("any", "any", operation=operation).made_from(answer)
    assert (error.answer is answer, error.answered) == (True, answered)
