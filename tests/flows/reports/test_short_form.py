"""A release report in a few lines: short, plain, and nothing in it is markdown, HTML or a link (document 5, §3)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from markdown_it import MarkdownIt

from flows.job.waiting import Shown
from flows.prefect.artifacts import REPORT, Page
from flows.reports.short_form import LARGEST, headline, lines, publish, short, tiles
from tests.peers import release_report as reports
from tests.peers.prefect import prefect_in_memory

WHERE = "/srv/jobs/x/report/step-3/release-report.html"


def test_the_first_words_are_the_answer() -> None:
    assert headline(reports.rich()) == "Do not release. 3 reasons to stop."
    assert headline(reports.rich(language="de")) == "Nicht freigeben. 3 Gründe für einen Stopp."
    assert headline(reports.clean()).startswith("No reason against release was found.")


def test_what_left_without_a_decision_is_said_so_with_what_to_do_now() -> None:
    sent = reports.rich(step=None, sent="undecided")
    assert headline(sent) == "Sent without a decision, despite 3 reasons to stop."
    head, _, why, *_ = short(sent, where=WHERE).splitlines()
    assert head == "## Sent without a decision, despite 3 reasons to stop"
    assert why.startswith("The data were sent.")
    assert headline(reports.clean(step=None, sent="undecided")).startswith("Sent without a decision. The report lists")


def test_a_terminal_gets_tiles_stops_and_looks_and_no_note() -> None:
    said = lines(reports.rich())
    assert said[1] == (
        "67 patients; 3 files, 34.5 MB, 48,211 resources; Destination: "
        "https://fhir.research.example/fhir (unencrypted connection)"
    )
    assert said[2].startswith("  STOP: ")
    assert f" {reports.MAIDEN} " in said[2]
    assert said[2].endswith("(all patients)")
    assert [line.split(":")[0].strip() for line in said[2:]] == ["STOP"] * 3 + ["LOOK"] * 3


@pytest.mark.parametrize(("language", "said"), [("en", "nothing is sent"), ("de", "es wird nichts gesendet")])
def test_where_nothing_is_sent_that_is_said_in_words(language: Literal["en", "de"], said: str) -> None:
    report = reports.rich(language=language)
    stays = report.tiles.model_copy(update={"destination": "@no-destination", "encrypted": None})
    assert tiles(report.model_copy(update={"tiles": stays})).endswith(f": {said}")


def test_many_findings_are_cut_and_it_is_said() -> None:
    assert lines(reports.huge())[-1] == "  580 more, see the report"
    assert len(lines(reports.huge())) == 23


@pytest.mark.parametrize(
    "made", [reports.rich, reports.decided, reports.hostile, reports.huge], ids=lambda m: m.__name__
)
@pytest.mark.parametrize("language", ["en", "de"])
def test_the_artifact_is_short_and_loads_nothing(made: object, language: str) -> None:
    text = short(made(language=language), where=WHERE)  # type: ignore[operator]
    assert len(text.encode()) <= LARGEST
    assert WHERE in text
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    inner = [child for token in tokens for child in token.children or ()]
    assert not [token for token in tokens if token.type in {"html_block", "table_open", "fence", "code_block"}]
    assert not [child for child in inner if child.type in {"html_inline", "image"}]
    links = [child.attrGet("href") for child in inner if child.type == "link_open"]
    assert links == []
    assert [token.tag for token in tokens if token.type == "heading_open"] == ["h2"]


def test_the_decision_stands_in_it() -> None:
    text = short(reports.decided(), where=WHERE)
    assert "Released by Anna Data on 23 November 2026, 06:12 UTC, in the form" in text
    assert "the maiden names are made up" in text


def test_that_there_is_no_report_is_said_in_its_language(tmp_path: Path) -> None:
    with prefect_in_memory() as known:
        page = Page(known.api, reports.JOB, REPORT)
        publish(page, tmp_path, Shown(failed="no space is left"), 3, "de")
    assert known.page["data"] == "**Der Freigabebericht fehlt**: no space is left\n"


def test_no_sign_of_a_terminal_gets_through() -> None:
    for line in lines(reports.hostile(), most=1000):
        assert line.isprintable()
