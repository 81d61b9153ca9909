"""What of an answer may be shown."""

from __future__ import annotations

import json

import pytest

from tasks.shared.http.answer import issue_texts


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
