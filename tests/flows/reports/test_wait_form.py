"""The form of a wait in the report's language: its description and the titles of its fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flows.engine import runs
from flows.engine.flow_runs import FormAnswer
from flows.gate import reviewed_files, rules
from flows.reports.pages import field_words, wait_description
from flows.reports.short_form import lines
from tasks.release_report.page.words import LANGUAGES, Words
from tasks.shared.files.inventory import Inventory, InventoryEntry, differences
from tasks.shared.report import Approval, Corrections, Shown, Waiting
from tests.docs.pages import example
from tests.peers import release_report as reports

JOB = "/srv/jobs/0b2c4a5e"
STEPS = ("local_import", "pseudonymizer", "wait", "send")


def waiting(language: str = "de", **more: Any) -> Waiting:
    shown = Shown(
        page="report/step-3/release-report.html", stops=3, lines=tuple(lines(reports.rich(language=language)))
    )
    known: dict[str, Any] = {
        "position": 3, "step": "wait", "since": "2026-11-23T05:00:00+00:00", "looked_at": f"{JOB}/pseudonymized",
        "directory": f"{JOB}/pseudonymized_wait", "reads": f"{JOB}/pseudonymized", "files": ("a.ndjson.zst, 2 kB",),
        "leaves": f"{JOB}/pseudonymized", "reader": "send", "report": shown,
    }  # fmt: skip
    return Waiting(**known | more)


def test_the_whole_form_is_in_the_language_of_the_report() -> None:
    text = wait_description(waiting(), STEPS, "sluice pipeline continue", language="de")
    assert "Der Auftrag wartet bei Schritt 3 von 4 auf Ihre Entscheidung." in text
    assert "**Der Freigabebericht**: Nicht freigeben. 3 Gründe für einen Stopp." in text
    assert "- STOPP: " in text
    assert "**Was hinausgeht**: `send` liest diese Dateien in" in text
    assert "*release* gibt frei, und es geht mit `send` weiter; *reject* lehnt ab" in text
    assert "**Eine Freigabe braucht eine Anmerkung**" in text
    assert " the " not in text


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "more",
    [
        {"leaves": None, "reader": reviewed_files.NEXT, "reads": f"{JOB}/pseudonymized_wait"},
        {"corrections": Corrections.NOT_SENT, "report": Shown(missing="x", inside=True), "position": 4},
        {
            "corrections": Corrections.TABLES,
            "again": (rules.OLDER,),
            "report": Shown(page="r", stops=1),
        },
    ],
    ids=["inside", "missing", "again"],
)
def test_no_name_of_a_sentence_is_shown_in_its_place(language: str, more: dict[str, Any]) -> None:
    text = wait_description(waiting(language, **more), STEPS, "x", language=language)
    assert not [name for name in ("form_", "again_", "{", "}") if name in text]
    assert (" the " in text) is (language == "en")


def test_the_api_body_shown_on_the_ui_page_is_an_answer() -> None:
    answer = FormAnswer.model_validate(json.loads(example("docs/prefect-ui.md", '{"run_input"').text)["run_input"])
    assert answer.decision == "release"
    assert answer.comment.strip()


def test_the_form_limits_the_length_of_each_text() -> None:
    fields = runs.worded(field_words("en")).model_json_schema()["properties"]
    longest = {name: field.get("maxLength") for name, field in fields.items() if name != "decision"}
    assert longest == {"by": 2000, "comment": 2000}


ON_THE_TERMINAL = {"NEXT", "INSIDE", "CHANGED", "CORRECTED", "ON_DEMAND"}
"""Constants that no form shows."""


def refusals() -> list[str]:
    """Return all reasons in the record for which the form can say that a job waits again."""
    constants = [value for module in (rules, reviewed_files) for name, value in vars(module).items()
                 if name.isupper() and isinstance(value, str) and name not in ON_THE_TERMINAL]  # fmt: skip
    yes = Approval(approved=True, by="Anna")
    objections = [
        rules.objection(yes.model_copy(update=update), shown)
        for update, shown in (({}, Shown(missing="x")), ({}, Shown(stops=2)), ({"by": "\u200b"}, None))
    ]
    before = Inventory((InventoryEntry("a", 1, "1"), InventoryEntry("b", 1, "2"), InventoryEntry("c", 1, "3")))
    now = Inventory((InventoryEntry("a", 1, "0"), InventoryEntry("d", 1, "2"), InventoryEntry("e", 1, "5")))
    many = Inventory(tuple(InventoryEntry(f"e{n:02}", 1, "5") for n in range(30)))
    changed = [*differences(before, now), *differences(before, many)]
    return [*constants, *(f"not released: {why}" for why in objections), *changed]


def test_why_it_waits_again_is_said_in_german_whatever_it_is() -> None:
    said = {line: Words("de", 0).again(line) for line in refusals()}
    assert [line for line, german in said.items() if line == german] == []
    assert {"geändert: a", "umbenannt: b in d", "entfernt: c", "dazugekommen: e"} <= set(said.values())
    english = Words("en", 0)
    assert [line for line in said if english.again(line) != line] == []
    assert Words("de", 0).again("of another version") == "of another version"


def test_a_path_too_wide_for_the_form_may_be_broken_behind_its_signs() -> None:
    shown = Shown(lines=(f"STOP: Original values are still in {reports.MAIDEN} (name).",))
    text = wait_description(waiting(report=shown), STEPS)
    assert "StructureDefinition/<wbr>patient-mothersMaidenName).<wbr>valueString" in text
    assert r"Original values are still in Patient.<wbr>extension(<wbr>http\://<wbr>hl7.<wbr>org/" in text


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_fields_have_words_and_take_the_same_answers_in_every_language(language: str) -> None:
    schema = runs.worded(field_words(language)).model_json_schema()
    assert "description" not in schema
    known = FormAnswer.model_json_schema()["properties"]
    for name, field in schema["properties"].items():
        assert not field["title"].startswith("field_")
        assert not field.pop("description").startswith("field_")
        assert field | {"title": known[name]["title"]} == known[name]
    assert schema["properties"]["decision"]["title"] == {"en": "Decision", "de": "Entscheidung"}[language]
