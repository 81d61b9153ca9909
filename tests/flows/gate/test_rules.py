"""What an approval needs (document 5 §3; 4-product.md §4, "Wait")."""

from __future__ import annotations

import pytest

from flows.gate import rules
from tasks.shared.report import Approval, Shown, visible_text

STOPS, CLEAN, MISSING = Shown(page="r", stops=3), Shown(page="r"), Shown(missing="disk full")


@pytest.mark.parametrize(
    ("shown", "approved", "by", "comment", "why"),
    [
        (STOPS, True, "Anna", "", "has stops (3), and no comment"),
        (STOPS, True, "Anna", "\u200b\u00ad", "has stops (3), and no comment"),
        (STOPS, True, "Anna", "agreed", None),
        (STOPS, False, "", "", None),
        (STOPS.model_copy(update={"inside": True}), True, "Anna", "", None),
        (MISSING, True, "Anna", "", "is missing, and no comment"),
        (MISSING, True, "Anna", "looked at by hand", None),
        (CLEAN, True, "Anna", "", None),
        (CLEAN, True, "\u2800", "fine", "needs a name"),
        (None, True, "Anna", "", None),
    ],
)
def test_an_approval_needs_a_name_and_with_stops_or_without_a_report_a_comment(
    shown: Shown | None, approved: bool, by: str, comment: str, why: str | None
) -> None:
    objection = rules.objection(Approval(approved=approved, by=by, comment=comment), shown)
    assert objection is None if why is None else why in str(objection)


@pytest.mark.parametrize(
    "text",
    ["", " \n\t\u00a0\u3000", "\u200b\u200d\u2060\ufeff", "\u00ad\u202e\u180e", "\u2800\u3164\u115f", "\u0301\u0000"],
)
def test_a_text_in_which_nothing_is_visible_is_none(text: str) -> None:
    assert visible_text(text) == ""


@pytest.mark.parametrize("text", ["x", "李", "é", "?", "👍", "a\u200bb"])
def test_other_texts_are_taken_as_they_are(text: str) -> None:
    assert visible_text(f" {text}\n") == text
