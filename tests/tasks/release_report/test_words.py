"""The words of both languages: the same names with the same places, and a sentence for all that a report names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import tasks.release_report
import tasks.shared.fhir.persons
from tasks.release_report.findings import LEVEL_OF
from tasks.release_report.numbers import Count
from tasks.release_report.words import Words

LANGUAGES = ("en", "de")
PLACE = Path(tasks.release_report.__file__).parent
ALL: dict[str, dict[str, Any]] = {
    language: json.loads((PLACE / "words" / f"{language}.json").read_text()) for language in LANGUAGES
}
SOURCE = "".join(
    path.read_text()
    for path in (*PLACE.iterdir(), Path(tasks.shared.fhir.persons.__file__))
    if path.suffix in (".py", ".j2")
)


def test_both_languages_have_the_same_names() -> None:
    assert list(ALL["en"]) == list(ALL["de"])
    assert list(ALL["en"]["findings"]) == list(ALL["de"]["findings"])


@pytest.mark.parametrize("name", [*ALL["en"]])
def test_both_languages_have_the_same_places(name: str) -> None:
    english, german = ({*re.findall(r"\{\w+\}", json.dumps(ALL[language][name]))} for language in LANGUAGES)
    assert english == german


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_finding_has_words(language: str) -> None:
    assert {*ALL[language]["findings"]} == {*LEVEL_OF}
    for say, _, many in ALL[language]["findings"].values():
        assert say.endswith((".", "{about}"))
        assert not many or "{n}" in many


PREFIXES = re.compile(
    r"(verdict|because|section|table|column|fact|said|count|lines|patients|where|n)_|(kind|ids|births)-"
)
"""What the code puts before a name that it has."""


@pytest.mark.parametrize("name", [name for name in ALL["en"] if not name.startswith(("lead_", "lost-"))])
def test_every_word_is_used(name: str) -> None:
    whole, rest = re.escape(name), re.escape(PREFIXES.sub("", name, count=1))
    assert re.search(rf"(?<![\w-])({whole}|{rest})(?![\w-])", SOURCE)


@pytest.mark.parametrize(
    ("language", "count", "unit", "expected"),
    [
        ("en", Count(word="fewer", number=5), "", "fewer than 5 patients"),
        ("en", Count(word="about", number=1200), "count", "about 1,200"),
        ("de", Count(word="about", number=1200), "count", "etwa 1.200"),
        ("en", Count(word="least", number=5, lines=1204), "", "5 or more patients (1,204 lines)"),
        ("en", Count(word="nobody", lines=1), "", "1 line linked to no patient"),
        ("de", Count(word="all"), "", "alle Patienten"),
        ("en", Count(unit="lines", word="about", number=20), "", "about 20 lines"),
        ("en", Count(unit="lines", word="about", number=20), "count", "about 20 lines"),
    ],
)
def test_numbers_in_words(language: str, count: Count, unit: str, expected: str) -> None:
    assert Words(language, 5).count(count, unit) == expected


@pytest.mark.parametrize(
    ("language", "expected"), [("en", "28 November 2026, 11:30 UTC"), ("de", "28.11.2026, 11:30 UTC")]
)
def test_moments_are_in_utc(language: str, expected: str) -> None:
    assert Words(language).moment("2026-11-28T12:30:00+01:00") == expected
    assert Words(language).moment("soon") == "soon"
