"""The page of a release report: one file, nothing that runs, small, plain about the answer (document 5, §3, §4.8)."""

from __future__ import annotations

import re
import time
from datetime import UTC
from html.parser import HTMLParser

import pytest

from tasks.release_report.page.page import LARGEST, html
from tasks.release_report.page.words import Words
from tasks.release_report.report.document import (
    LEVELS,
    Fact,
    ReleaseReport,
    ReportFinding,
    ReportSection,
    Table,
    Tiles,
)
from tasks.release_report.report.numbers import Count
from tests.peers import release_report as reports

CSP = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
SAMPLES = (reports.rich, reports.clean, reports.decided, reports.hostile)


class Read(HTMLParser):
    """The tags and the text of a page, as far as they are well formed."""

    VOID = frozenset({"meta", "br", "link", "img", "input", "rect", "wbr"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())


def text_of(report: ReleaseReport) -> str:
    return Read(html(report)).text


@pytest.mark.parametrize("made", SAMPLES, ids=lambda made: made.__name__)
@pytest.mark.parametrize("language", ["en", "de"])
def test_nothing_in_the_page_runs_or_comes_from_elsewhere(made: object, language: str) -> None:
    page = html(made(language=language))  # type: ignore[operator]
    read = Read(page)
    assert read.open == []
    names = {tag for tag, _ in read.tags}
    assert not names & {"script", "img", "link", "iframe", "object", "form", "base", "style"} - {"style"}
    assert [tag for tag, _ in read.tags].count("style") == 1
    for _, attributes in read.tags:
        assert not {name for name in attributes if name.startswith("on")} | {"src", "action", "style"} & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert [a["content"] for _, a in read.tags if a.get("http-equiv") == "Content-Security-Policy"] == [CSP]
    assert dict(read.tags)["html"]["lang"] == language
    style = page.partition("<style>")[2].partition("</style>")[0]
    assert not re.search(r"url\(|@import|expression", style)


def test_hostile_strings_are_text() -> None:
    text = text_of(reports.hostile())
    for one in reports.HOSTILE:
        if one.isprintable():
            assert one in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert r"\x1b[31mred\x07 \u202eevil\u2066 \x00 end" in text


@pytest.mark.parametrize(
    "made", [*SAMPLES, pytest.param(reports.huge, marks=pytest.mark.slow)], ids=lambda m: m.__name__
)
def test_the_page_is_small_whatever_the_document_holds(made: object) -> None:
    assert len(html(made()).encode()) <= LARGEST  # type: ignore[operator]


def test_what_is_cut_is_said() -> None:
    rows = tuple((f"path{n}", Count(word="about", number=40)) for n in range(1234))
    table = Table(name="left", columns=("path", "patients"), rows=rows)
    read = Read(html(reports.rich(sections=(ReportSection(number=7, name="identifying", tables=(table,)),))))
    shown = len(re.findall(r"path\d+", read.text))
    assert 20 <= shown <= 200
    assert f"{1234 - shown:,} more rows are in release-report.json." in read.text


def test_many_short_lines_are_one_small_page() -> None:
    rows = tuple((f"p{n}", n) for n in range(3_000))
    sections = tuple(
        ReportSection(number=n, name=name, tables=(Table(name="left", columns=("path", "lines"), rows=rows),))
        for n, name in enumerate(reports.SECTIONS, start=2)
    )
    assert len(html(reports.rich(sections=sections)).encode()) <= LARGEST


class TestTheAnswer:
    """The first lines of the page: the result."""

    @pytest.mark.parametrize(("language", "said"), [("en", "Do not release"), ("de", "Nicht freigeben")])
    def test_stops_are_said_first_and_each_with_its_place(self, language: str, said: str) -> None:
        text = text_of(reports.rich(language=language))
        order = [text.index(what) for what in (said, "67", reports.MAIDEN, "Patient.telecom.value", "DiagnosticReport")]
        assert order == sorted(order)

    def test_without_a_stop_nobody_is_told_to_refuse(self) -> None:
        text = text_of(reports.clean())
        assert "Do not release" not in text
        assert "No reason to stop and nothing to review was found." in text
        assert "What was not checked" in text
        looks = tuple(one for one in reports.rich().findings if one.level == "look")
        assert "Look first, then decide" in text_of(reports.rich(findings=looks, tiles=reports.tiles(67, looks)))

    def test_a_decision_stands_on_the_first_screen_and_in_section_10(self) -> None:
        text = text_of(reports.decided())
        assert text.count("the maiden names are made up: these are test patients") == 2
        assert text.count("by Anna Data on 23 November 2026, 06:12 UTC, in the form") == 2
        assert "Nobody has decided yet" not in text
        assert "Nobody has decided yet" in text_of(reports.rich())

    def test_what_was_decided_is_the_answer(self) -> None:
        one = reports.decided().decisions[0]
        no = one.model_copy(update={"approved": False})
        for report, answer in (
            (reports.decided(), "Released despite reasons to stop"),
            (reports.clean(decisions=(one,)), "Released"),
            (reports.rich(decisions=(no,)), "Rejected"),
        ):
            assert f"<h1>{answer}</h1>" in html(report)

    @pytest.mark.parametrize(
        ("language", "answer", "left", "would"),
        [
            ("en", "Sent without a decision, despite 3 reasons to stop", "in the sent data", "in the data to be sent"),
            (
                "de",
                "Ohne Entscheidung gesendet, trotz 3 Gründen für einen Stopp",
                "in dem, was hinausgegangen ist",
                "in dem, was hinausgehen soll",
            ),
        ],
    )
    def test_what_left_without_a_decision_is_not_to_be_rejected(
        self, language: str, answer: str, left: str, would: str
    ) -> None:
        text = text_of(reports.rich(language=language, step=None, sent="undecided"))
        assert text.count(answer) == 2  # title and head
        assert text.count(left) == 2  # the tile and section 4
        assert would not in text
        for word in ("Do not release", "Reject", "would leave", "Nicht freigeben", "Lehnen Sie ab"):
            assert word not in text
        assert would in text_of(reports.rich(language=language))

    def test_what_was_sent_is_said_as_sent_with_a_decision_and_without_stops(self) -> None:
        clean = html(reports.clean(step=None, sent="undecided"))
        assert "<h1>Sent without a decision</h1>" in clean
        assert "Nobody decided before the data were sent." in Read(clean).text
        released = html(reports.decided(step=None, sent="decided"))
        assert "<h1>Released despite reasons to stop</h1>" in released
        assert "in the sent data" in Read(released).text
        assert "would leave" not in Read(released).text

    @pytest.mark.parametrize(
        ("language", "one", "many"),
        [("en", ("stop", "look", "note"), ("3 stops", "3 looks", "1 note")),
         ("de", ("Stopp", "zum Ansehen", "Hinweis"), ("3 Stopps", "3 zum Ansehen", "1 Hinweis"))],
    )  # fmt: skip
    def test_one_is_said_as_one_and_more_as_more(
        self, language: str, one: tuple[str, ...], many: tuple[str, ...]
    ) -> None:
        found = reports.rich(language=language).findings
        first = tuple(next(one for one in found if one.level == level) for level in LEVELS)
        for findings, said in ((found, many), (first, tuple(f"1 {word}" for word in one))):
            page = html(reports.rich(language=language, findings=findings, tiles=reports.tiles(67, findings)))
            for level in LEVELS:  # a mark is a word, not a colour alone
                assert f'<span class="mark {level}">{Words(language, 5)(level)}</span>' in page
            tile = page.partition('<ul class="tiles"')[2].partition("</ul>")[0]
            assert re.findall(r'<span class="mark (\w+)">([^<]*)</span>', tile) == [*zip(LEVELS, said, strict=True)]


class TestTheLook:
    """Classes of cells for the style sheet."""

    ROW = (
        "Patient.extension(http://x.example/y).valueString",
        "@technical",
        "@stop",
        "CRYPTOHASH",
        None,
        "ab" * 32,
        "MedicationAdministration.dosage.text",
        Count(word="about", number=40),
        "x" * 60,
    )

    def page(self) -> str:
        columns = ("path", "asked", "level", "code", "reason", "sha256", "about", "patients", "text")
        table = Table(name="left", columns=columns, rows=(self.ROW,))
        return html(reports.clean(sections=(ReportSection(number=7, name="identifying", tables=(table,)),)))

    def test_words_are_not_broken_and_urls_and_hashes_are(self) -> None:
        read = Read(self.page())
        found = [attributes.get("class") or "" for tag, attributes in read.tags if tag == "td" or
                 (tag == "th" and attributes.get("scope") == "row")]  # fmt: skip
        assert found == ["any", "", "one", "", "few none", "any", "", "num", "any"]

    def test_a_path_is_broken_behind_its_signs(self) -> None:
        assert ">Medication<wbr>" not in self.page()
        assert ">MedicationAdministration.<wbr>dosage.<wbr>text<" in self.page()
        assert "MedicationAdministration.dosage.text" in Read(self.page()).text

    def test_a_number_is_not_broken(self) -> None:
        table = Table(name="left", columns=("path", "patients"), rows=(("a", Count(word="about", number=1235)),))
        sections = (ReportSection(number=7, name="identifying", tables=(table,)),)
        assert ">1.235<" in html(reports.clean(language="de", sections=sections))

    def test_the_style_sheet_has_what_the_cells_are_told(self) -> None:
        style, _, phone = self.page().partition("<style>")[2].partition("</style>")[0].partition("@media (max-width")
        assert re.search(r"\ntd\{[^}]*overflow-wrap:break-word", style)
        assert ".any{overflow-wrap:anywhere}" in style
        assert ".one{white-space:nowrap}" in style
        phone = phone.partition("@media print")[0]
        assert phone.index("td.num{text-align:left}") > phone.index("td,tbody th{")
        assert "td.none{display:none}" in phone


def test_every_table_has_a_caption_and_headers_for_a_screen_reader() -> None:
    read = Read(html(reports.rich()))
    names = [tag for tag, _ in read.tags]
    assert names.count("table") == names.count("caption") == names.count("thead")
    assert all(attributes.get("scope") in {"col", "row"} for tag, attributes in read.tags if tag == "th")
    assert all(
        attributes.get("aria-hidden") for tag, attributes in read.tags if tag == "svg" and "role" not in attributes
    )
    assert names.count("h1") == names.count("main") == 1


class TestWords:
    @pytest.mark.parametrize(
        ("count", "en", "de"),
        [
            (Count(word="none"), "none", "keine"),
            (Count(word="fewer", number=5), "fewer than 5", "weniger als 5"),
            (Count(word="about", number=1235), "1,235", "1.235"),
            (Count(word="all"), "all", "alle"),
        ],
        ids=lambda value: value.word if isinstance(value, Count) else "",
    )
    def test_a_count_is_said_in_words(self, count: Count, en: str, de: str) -> None:
        assert [Words(language, 5).count(count) for language in ("en", "de")] == [en, de]

    def test_numbers_sizes_and_moments_are_those_of_the_language(self) -> None:
        en, de = Words("en", 5), Words("de", 5, zone=UTC)
        assert [w.number(12345.5) for w in (en, de)] == ["12,345.5", "12.345,5"]
        assert [w.size(34_512_220) for w in (en, de)] == ["34.5 MB", "34,5 MB"]
        assert "34,5\N{NO-BREAK SPACE}MB" in html(reports.rich(language="de"))
        assert [w.moment("2026-11-23T06:12:00+01:00") for w in (en, de)] == [
            "23 November 2026, 05:12 UTC", "23.11.2026, 05:12 UTC",
        ]  # fmt: skip
        assert de.moment("some day") == "some day"

    @pytest.mark.parametrize(
        ("made", "shown"),
        [
            ("2026-11-25T01:27:00+01:00", "25.11.2026, 01:27 MEZ"),
            ("2026-07-25T01:27:00+02:00", "25.07.2026, 01:27 MESZ"),
            ("2026-11-25T00:27:00+00:00", "25.11.2026, 00:27 UTC"),
            ("2026-11-25T05:57:00+05:30", "25.11.2026, 05:57 UTC+05:30"),
        ],
    )
    def test_times_of_a_german_page_are_local_on_every_machine(
        self, made: str, shown: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        report = reports.decided(language="de").model_copy(update={"made": made})
        (one, *_) = report.decisions
        for zone in ("UTC", "America/New_York"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            assert shown in text_of(report)
            words = Words.of_report(report)
            assert f"am {words.moment(one.when)}, " in text_of(report)
        monkeypatch.undo()
        time.tzset()

    def test_a_german_form_has_local_times(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        assert Words("de", 5).moment("2026-11-25T00:27:00+00:00") == "25.11.2026, 01:27 MEZ"
        assert Words("en", 5).moment("2026-11-25T00:27:00+00:00") == "25 November 2026, 00:27 UTC"
        monkeypatch.undo()
        time.tzset()

    def test_a_name_without_words_is_shown_as_it_is(self) -> None:
        fact = Fact(name="new-fact", value="@new-word")
        report = reports.rich(
            findings=(ReportFinding(level="stop", code="new-code", about="Patient.x", section=7),),
            sections=(ReportSection(number=7, name="new-name", said=("new-said",), facts=(fact,)),),
            tiles=reports.rich().tiles,
        )  # fmt: skip
        text = text_of(report)
        for name in ("new-code: Patient.x", "new-name", "new-said", "new-fact", "@new-word"):
            assert name in text


def test_the_least_a_report_can_be_is_a_page() -> None:
    tiles = Tiles(patients=0, files=0, bytes=0, resources=0, destination="", encrypted=None, stops=0, looks=0, notes=0)
    report = ReleaseReport(
        job="x", project="", step=None, made="", language="en", k=5, tiles=tiles, findings=(), sections=()
    )
    assert "Nobody has decided yet" in text_of(report)
