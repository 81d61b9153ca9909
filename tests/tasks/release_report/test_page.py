"""Page, artifact and short lines: what a person reads of a report, in both languages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.release_report import files
from tasks.release_report.document import Decided, ReleaseReport, ReportFinding
from tasks.release_report.markdown import lines, markdown, title
from tasks.release_report.page import LARGEST, html
from tasks.release_report.report import Summary
from tasks.shared.markdown import code, literal
from tests.tasks.release_report.reporting import (
    MADE,
    SEND,
    codes,
    config,
    observation,
    patient,
    record,
    report,
    step,
    summary,
    write,
)

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=http://evil.example/x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "</style><style>@import url(http://evil.example/x.css)</style>",
    "{{ 7*7 }}{% raw %}",
    "![x](http://evil.example/z.png) [y](javascript:alert(1))",
    "\x1b[31mred\x07 \u202eevil\u2066 \x00 end",
    "| a | b |\n# heading\n- list\n1. one",
    "`code` ``more`` <!-- x -->",
)


@pytest.fixture
def found(tmp_path: Path) -> ReleaseReport:
    """Return a report with findings of every level and a row in every table."""
    person = {
        "name": [{"family": "x"}], "birthDate": "1930-01-02", "gender": "male", "address": [{"postalCode": "10115"}],
        "extension": [{"url": "http://x.example/y", "valueString": "x"}],
    }  # fmt: skip
    write(tmp_path, "a.ndjson", *(patient(str(number), **person) for number in range(9)), observation("1"))
    (tmp_path / "query.json").write_text(
        '{"cohortDefinition": {"inclusionCriteria": [[{"context": {"code": "c"}, "termCodes": [{"code": "t"}]}]]},'
        ' "dataExtraction": {"attributeGroups": [{"name": "g", "attributes": [{"attributeRef": "Patient.id"}]}]}}'
    )
    leaks = {"Patient.identifier.value|identifier|s": 9}
    return report(
        tmp_path, found={"leaks": leaks, "dates that stayed": {"Encounter.period.end": 9}},
        crtdl=tmp_path / "query.json",
    )  # fmt: skip


def changed(report: ReleaseReport, **update: Any) -> ReleaseReport:
    return report.model_copy(update=update)


def test_the_first_screen_has_verdict_tiles_terms_and_findings_in_this_order(found: ReleaseReport) -> None:
    text = re.sub(r"<style>.*</style>", "", html(found), flags=re.DOTALL)
    in_order = (
        "Do not release: 3 reasons to stop", "Patients</span>", "store.example.org", "Purpose", "a registry",
        "The pseudonymizer left original values (identifier)", "Identifying data (name) are still in", "Dates in ",
        'id="s3"', 'id="s9"',
    )  # fmt: skip
    places = [text.index(one) for one in in_order]
    assert places == sorted(places)


@pytest.mark.parametrize("language", ["en", "de"])
def test_every_name_of_the_document_has_words(found: ReleaseReport, language: str) -> None:
    text = html(changed(found, language=language)) + markdown(changed(found, language=language), "/p")
    body = re.sub(r"<style>.*</style>", "", text, flags=re.DOTALL)
    assert not re.findall(
        r"\b(?:said|fact|table|column|kind|section|lead|verdict|because|count|patients|lines)_\w+", body
    )
    assert "{" not in body
    assert "@" not in re.sub(r"data-c|@media", "", body)


def test_german_is_german(found: ReleaseReport) -> None:
    german = html(changed(found, language="de"))
    assert 'lang="de"' in german
    assert "Nicht freigeben: 3 Gründe sprechen dagegen" in german
    assert "Patients" not in german


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        ({}, "Do not release: 3 reasons to stop"),
        ({"decisions": (Decided(approved=False, by="Bo", where="ui", when="2026-11-28T10:00:00+00:00"),)}, "Rejected"),
        ({"decisions": (Decided(approved=True, by="Bo", where="ui", when="2026-11-28T10:00:00+00:00"),)},
         "Released despite 3 reasons to stop"),
        ({"outcome": "sent-undecided"}, "Sent without a decision, despite 3 reasons to stop"),
        ({"outcome": "sent-undecided", "findings": ()}, "Sent without a decision"),
        ({"outcome": "unasked"}, "Do not release: 3 reasons to stop"),
        ({"findings": ()}, "No reason to stop was found"),
    ],
)  # fmt: skip
def test_the_verdict_is_the_same_wherever_it_is_read(
    found: ReleaseReport, update: dict[str, Any], expected: str
) -> None:
    one = changed(found, **update)
    assert title(one) == expected
    assert lines(one)[0] == expected
    assert markdown(one, "/p").startswith(f"# {expected}\n")
    assert f"<h1>{expected}</h1>" in html(one)


@pytest.mark.parametrize(("outcome", "asked"), [("waits", True), ("unasked", False), ("sent-undecided", False)])
def test_a_report_that_nobody_decides_asks_for_no_decision(found: ReleaseReport, outcome: str, asked: bool) -> None:
    one = changed(found, outcome=outcome)
    for text in (html(one), markdown(one, "/p")):
        assert ("Nobody has decided yet" in text, "reject it for good" in text) == (asked, asked)
        assert ("No wait step of this job asks" in text) is not asked


@pytest.mark.parametrize("private", [True, False])
def test_the_connection_has_the_colour_of_its_finding(tmp_path: Path, private: bool) -> None:
    write(tmp_path, "a.ndjson", patient("1"))
    url = "http://10.0.0.1" if private else "http://store.example.org"
    page = html(report(tmp_path, config=config(services={"send": SEND | {"url": url}})))
    assert ('class="more open stop"' in page, 'class="more open"' in page) == (not private, private)


def test_a_decision_is_on_page_and_artifact(found: ReleaseReport) -> None:
    decision = Decided(approved=True, by="Anna", where="command", when="2026-11-28T10:00:00+00:00", comment="agreed")
    one = changed(found, decisions=(decision,))
    for text in (html(one), markdown(one, "/p")):
        assert "by Anna on 28 November 2026, 10:00 UTC, by a command" in text
        assert "agreed" in text


def test_many_findings_of_a_kind_share_one_row(found: ReleaseReport) -> None:
    many = tuple(
        ReportFinding(level="stop", code="left", section=6, about=f"Patient.name.x{number}", kind="name")
        for number in range(6)
    )
    text = html(changed(found, findings=many))
    assert text.count('<li class="stop">') == 1
    assert "Identifying data are still in 6 paths." in text
    assert "3 more" in text
    assert all(one.about in text for one in many)


def spoiled(report: ReleaseReport, text: str) -> ReleaseReport:
    """Return the report with a text in every place that is not a name of ours."""
    finding = ReportFinding(level="stop", code="left", section=6, about=text, kind="name", values={"urls": text})
    decision = Decided(approved=True, by=text, where="ui", when=text, comment=text)
    tiles = report.tiles.model_copy(update={"destination": text, "terms": {"purpose": text}})
    tables = tuple(
        table.model_copy(update={"rows": (tuple(text for _ in table.columns),)})
        for section in report.sections for table in section.tables
    )  # fmt: skip
    section = report.sections[0].model_copy(update={"tables": tables, "facts": {"host": text}})
    return changed(
        report, findings=(finding,), decisions=(decision,), tiles=tiles, sections=(section,), project=text, job=text
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_strings_stay_text(found: ReleaseReport, text: str) -> None:
    one = spoiled(found, text)
    page = html(one)
    tags = set(re.findall(r"<(/?[a-zA-Z!][\w-]*)", page))
    clean = set(re.findall(r"<(/?[a-zA-Z!][\w-]*)", html(spoiled(found, "plain"))))
    assert tags <= clean
    assert page.count("<style>") == 1
    assert not {"\x1b", "\x07", "\x00", "\u202e", "\u2066"} & set(page + markdown(one, text))
    for line in lines(one):
        assert "\n" not in line


def test_the_artifact_keeps_the_spaces_of_a_sentence(found: ReleaseReport) -> None:
    text = markdown(found, "/p")
    assert "- **stop**: Dates in `Encounter.period.end` are original, while other dates" in text


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_strings_are_no_markdown(text: str) -> None:
    shown = literal(text)
    assert "\n" not in shown
    assert not re.search(r"(?<!\\)[<`|\[\]*#!]", shown)
    fenced = code(text)
    fence = re.match(r"`+", fenced)
    assert fence is not None
    assert fence[0] not in fenced[len(fence[0]) : -len(fence[0])]


@given(st.text(max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_text_can_stand_on_the_page(text: str) -> None:
    base = ReleaseReport.model_validate_json(BASE)
    assert "<script" not in html(spoiled(base, text))
    assert markdown(spoiled(base, text), text)


BASE = """
{"job": "j", "project": "p", "step": 2, "made": "2026-11-28T12:00:00+00:00", "language": "en", "k": 5,
 "tiles": {"patients": 1, "files": 1, "bytes": 1, "resources": 1, "tables": false, "destination": "d",
           "encrypted": true, "terms": {}},
 "findings": [], "files": "", "settings": "", "checksum": "",
 "sections": [{"number": 3, "name": "leaving",
               "tables": [{"name": "files", "columns": ["file"], "rows": [["a"]]}]}]}
"""


def test_however_long_the_document_the_page_has_at_most_150_kb(found: ReleaseReport) -> None:
    text = "\N{GRINNING FACE}" * 500
    many = tuple(
        ReportFinding(level=level, code=code, section=6, about=f"{number}{text}")  # type: ignore[arg-type]
        for level, code in (("stop", "left"), ("look", "free-text"), ("note", "kept"))
        for number in range(500)
    )
    tables = tuple(
        table.model_copy(update={"rows": (tuple(text for _ in table.columns),) * 200, "more": 7})
        for section in found.sections for table in section.tables
    )  # fmt: skip
    one = changed(found, findings=many, sections=(found.sections[0].model_copy(update={"tables": tables}),))
    page = html(one)
    assert len(page.encode()) <= LARGEST
    assert "in release-report.json" in page


def test_terms_that_are_not_given_are_marked(tmp_path: Path) -> None:
    write(tmp_path, "a.ndjson", patient("1"))
    summary(tmp_path, config=config(report={"retention": None, "contact": "dpo@h.example"}))
    page = files.page_of(tmp_path).read_text()
    assert '<dt>Retention</dt><dd class="open">not given</dd>' in page
    assert "<dt>Purpose</dt><dd>a registry</dd>" in page
    assert "<dt>Contact</dt><dd>dpo@h.example</dd>" in page


def test_data_that_stay_inside_are_no_reason_to_stop(tmp_path: Path) -> None:
    write(tmp_path, "a.ndjson", patient("1", name=[{"family": "x"}]))
    made = summary(tmp_path, inside=True)
    assert (made.stops, made.looks) == (0, 0)
    for text in (files.page_of(tmp_path).read_text(), made.markdown):
        assert "A further step processes these data before they are sent." in text


# Files: made once, never lost


def test_a_report_on_the_same_files_and_settings_is_not_made_again(tmp_path: Path) -> None:
    write(tmp_path, "a.ndjson", patient("1"))
    first = summary(tmp_path)
    later = {"made": "2027-01-01T00:00:00+00:00"}
    assert summary(tmp_path, **later) == first
    decision = Decided(approved=True, by="Anna", where="ui", when="2026-11-28T10:00:00+00:00")
    summary(tmp_path, step=None, decisions=(decision,), sent=MADE, **later)
    one = files.read(tmp_path)
    assert one is not None
    assert (one.made, one.step, one.outcome, one.decisions) == (found_made(first), None, "sent", (decision,))
    assert (one.sent, "Sending began on 28 November 2026, 12:00 UTC." in html(one)) == (MADE, True)
    summary(tmp_path, config=config(report={"k": 6}), **later)
    again = files.read(tmp_path)
    assert again is not None
    assert (again.made, again.k, again.decisions) == (later["made"], 6, ())


def test_a_validation_that_ran_since_is_in_the_report_on_the_same_files(tmp_path: Path) -> None:
    write(tmp_path, "a.ndjson", patient("1"))
    imported = step("local_import", output="import")
    assert "not-validated" in codes(report(tmp_path, steps=(imported,)))
    assert "not-validated" not in codes(report(tmp_path, step=4, steps=(imported, step("validation", 3))))


def found_made(_: Summary) -> str:
    return "2026-11-28T12:00:00+00:00"


def test_a_damaged_report_is_made_again(tmp_path: Path) -> None:
    write(tmp_path, "a.ndjson", patient("1"))
    first = summary(tmp_path)
    files.document_of(tmp_path).write_text("{")
    assert summary(tmp_path) == first


@pytest.mark.parametrize(("step", "first", "stays"), [(2, 3, True), (2, 2, False), (None, 3, False)])
def test_a_report_goes_with_the_step_that_it_was_made_for(
    tmp_path: Path, step: int | None, first: int, stays: bool
) -> None:
    write(tmp_path, "a.ndjson", patient("1"))
    record(tmp_path, 1)
    summary(tmp_path, step=step)
    files.remove_from(tmp_path, first)
    assert (files.read(tmp_path) is not None) is stays
    assert files.page_of(tmp_path).exists() is stays
