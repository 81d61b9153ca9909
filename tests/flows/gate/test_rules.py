"""Answers to single findings, and what a release needs (document 5 §3)."""

from __future__ import annotations

import pytest

from config import PipelineConfig
from flows.gate import rules
from tasks.shared.errors import InputError
from tasks.shared.report import Approval, Shown, visible_text

NAME = "identifying-left Patient.name.family"
PHONE = "identifying-left Patient.telecom.value"
URL = "original-left Patient.extension(http://his.example/?a=b).valueString"
LOOK = "free-text Procedure.note.text"
SHOWN = Shown(sha256="a" * 64, stops=(NAME, PHONE, URL), looks=(LOOK,))


@pytest.mark.parametrize(
    ("line", "key", "why"),
    [
        (f"{NAME}=made up", NAME, "made up"),
        (f"  {NAME} = a = b ", NAME, "a = b"),
        ("free-text=read by Anna", LOOK, "read by Anna"),
        (f"{URL}=a number of the study", URL, "a number of the study"),
        ("original-left=a = b", URL, "a = b"),
    ],
)
def test_an_answer_names_a_finding_by_its_key_or_its_code(line: str, key: str, why: str) -> None:
    assert rules.answers(["", line, "  "], SHOWN) == {key: why}


@pytest.mark.parametrize(
    "line", [NAME, f"{NAME}= ", f"{NAME}=\u200b\u00ad", "identifying-left=x", "dangling-reference=x", "=x", "Patient=x"]
)
@pytest.mark.parametrize("shown", [SHOWN, None, Shown(missing="disk full")])
def test_an_answer_without_a_text_or_to_no_single_finding_is_refused(line: str, shown: Shown | None) -> None:
    with pytest.raises(InputError):
        rules.answers([line], shown)


def test_an_answer_has_2000_characters_at_most() -> None:
    assert rules.answers([f"{NAME}={'x' * 2000}"], SHOWN) == {NAME: "x" * 2000}
    with pytest.raises(InputError, match="longer than 2,000 characters"):
        rules.answers([f"{NAME}={'x' * 2001}"], SHOWN)


INVISIBLE = [
    "",
    " \n\t\u00a0\u3000",
    "\u200b\u200d\u2060\ufeff",
    "\u00ad\u202e\u180e",
    "\u2800\u3164\u115f",
    "\u0301\u0000",
]


@pytest.mark.parametrize("text", INVISIBLE)
def test_a_text_in_which_nothing_is_visible_is_no_reason(text: str) -> None:
    assert visible_text(text) == ""
    assert "stops (3)" in str(rules.objection(released(SHOWN, despite=text), None, PipelineConfig()))


@pytest.mark.parametrize("text", ["x", "李", "é", "?", "👍", "a\u200bb"])
def test_other_texts_are_reasons_as_they_are(text: str) -> None:
    assert visible_text(f" {text}\n") == text


def released(shown: Shown, *accepted: str, despite: str = "", refused: tuple[str, ...] = ()) -> Approval:
    given = Approval(approved=True, by="Anna", despite=despite, accepted=dict.fromkeys(accepted, "agreed"))
    return rules.stamped(given.model_copy(update={"refused": dict.fromkeys(refused, "no")}), shown)


def test_a_release_needs_a_reason_for_each_stop_or_one_for_all() -> None:
    def why(decision: Approval) -> str | None:
        return rules.objection(decision, None, PipelineConfig())

    assert "stops (3)" in str(why(released(SHOWN)))
    assert "stops (1)" in str(why(released(SHOWN, NAME, PHONE, LOOK)))
    assert why(released(SHOWN, NAME, PHONE, URL)) is None
    assert why(released(SHOWN, despite="agreed")) is None
    assert "not acceptable (1)" in str(why(released(SHOWN, NAME, PHONE, URL, despite="agreed", refused=(NAME,))))


def test_stops_that_the_record_does_not_name_need_a_reason_for_all() -> None:
    shown = SHOWN.model_copy(update={"more_stops": 7})
    accepted = released(shown, *shown.stops)
    assert accepted.unexplained == ("more-stops (7)",)
    assert rules.objection(accepted, None, PipelineConfig()) is not None
    with pytest.raises(InputError):
        rules.answers(["more-stops (7)=agreed"], shown)
    assert rules.objection(released(shown, *shown.stops, despite="agreed"), None, PipelineConfig()) is None
