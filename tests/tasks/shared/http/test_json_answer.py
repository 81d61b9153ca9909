"""Wrong answers that any service, or what stands before it, can give: against the one reader of JSON answers."""

from __future__ import annotations

import codecs
import json
from typing import Any

import httpx
import pytest

from tasks.shared.http.answer import Answer, issue_texts
from tasks.shared.http.json_answer import NotJsonError, json_object, resource_type
from tests.peers.lies import WRONG_JSON

GOOD = b'{"resourceType":"OperationOutcome","issue":[{"severity":"error","value":1.50}]}'


def answer(body: bytes, kind: str | None = "application/fhir+json") -> Answer:
    return Answer(200, httpx.Headers({} if kind is None else {"Content-Type": kind}), body)


@pytest.mark.parametrize("name", WRONG_JSON)
def test_what_is_no_json_object_is_refused_without_quoting_it(name: str) -> None:
    wrong = WRONG_JSON[name]
    with pytest.raises(NotJsonError) as caught:
        json_object(answer(wrong.body, wrong.kind))
    assert "anary" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    "kind", ["application/json", "application/fhir+json; charset=UTF-8", "text/json", "APPLICATION/FHIR+JSON"]
)
def test_values_keep_their_spelling(kind: str) -> None:
    for body in (GOOD, codecs.BOM_UTF8 + GOOD, b"\r\n " + GOOD.replace(b",", b" ,\n")):
        members = json_object(answer(body, kind))
        assert resource_type(members) == "OperationOutcome"
        assert b"1.50" in bytes(members["issue"])


@pytest.mark.parametrize("value", [b"", b'"resourceType":null,', b'"resourceType":7,', b'"resourceType":["Patient"],'])
def test_an_object_may_have_no_type(value: bytes) -> None:
    members: dict[str, Any] = json_object(answer(b'{%b"id":"x"}' % value))
    assert resource_type(members) == ""


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({"issue": [{"diagnostics": "no\n  such path"}, {"details": {"text": "at 3"}}]}, ": no such path at 3"),
        ({"issue": [{"diagnostics": "x" * 1000}]}, ": " + "x" * 600),
        ({"issue": [{"code": "exception"}]}, ""),
        ({"issue": [{"diagnostics": 3}]}, ""),
        ([], ""),
    ],
)
def test_the_texts_of_an_outcome_are_shown_on_one_line(body: object, shown: str) -> None:
    assert issue_texts(json.dumps(body).encode()) == shown
    assert issue_texts(b"<html>") == ""
