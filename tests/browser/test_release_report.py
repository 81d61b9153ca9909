"""The page of a release report in a real browser, in four widths and both languages (document 5, section 4, 8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: see the extra browser")

from tasks.release_report.page.page import html
from tasks.release_report.report.document import ReleaseReport
from tests.peers import release_report as reports

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(400)]

SCREENS = ((360, 740), (768, 1024), (1280, 800), (1920, 1080))
SAMPLES = (reports.rich, reports.clean, reports.decided, reports.hostile)


@pytest.fixture
def shown(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Open a report from its file; fail on any other request of the page and on any console message."""
    asked: list[str] = []
    contexts = []

    def show(report: ReleaseReport, width: int = 1280, height: int = 800, **options: Any) -> Page:
        path = tmp_path / "release-report.html"
        path.write_text(html(report), encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: asked.append(message.text))
        page.on("dialog", lambda dialog: asked.append(dialog.message))
        page.goto(path.as_uri())
        asked.remove(path.as_uri())
        return page

    yield show
    for context in contexts:
        context.close()
    assert asked == []


@pytest.mark.parametrize("made", SAMPLES, ids=lambda made: made.__name__)
@pytest.mark.parametrize("language", ["en", "de"])
def test_the_page_asks_for_nothing_and_nothing_of_it_runs(
    shown: Callable[..., Page], made: Callable[..., ReleaseReport], language: str
) -> None:
    page = shown(made(language=language))
    assert page.locator("script, img, iframe, object, link, form").count() == 0
    assert page.locator("html").get_attribute("lang") == language
    for text in reports.HOSTILE if made is reports.hostile else ():
        if text.isprintable():
            assert text in page.locator("body").text_content()  # type: ignore[operator]


@pytest.mark.parametrize("made", SAMPLES, ids=lambda made: made.__name__)
@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: str(screen[0]))
@pytest.mark.parametrize("language", ["en", "de"])
def test_the_page_is_as_wide_as_the_screen(
    shown: Callable[..., Page], made: Callable[..., ReleaseReport], screen: tuple[int, int], language: str
) -> None:
    page = shown(made(language=language), *screen)
    assert page.evaluate("document.documentElement.scrollWidth") <= screen[0]


@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: str(screen[0]))
@pytest.mark.parametrize("language", ["en", "de"])
def test_no_word_of_ours_is_broken_in_a_cell(
    shown: Callable[..., Page], screen: tuple[int, int], language: str
) -> None:
    """A word is on one line: it has one box."""
    page = shown(reports.rich(language=language), *screen)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    broken = page.evaluate(
        """() => {
          const found = [];
          for (const cell of document.querySelectorAll("td:not(.any), tbody th:not(.any)")) {
            const walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
            for (let node = walk.nextNode(); node; node = walk.nextNode())
              for (const word of node.data.matchAll(/[^\\s\\-]+/g)) {
                const range = document.createRange();
                range.setStart(node, word.index);
                range.setEnd(node, word.index + word[0].length);
                if (range.getClientRects().length > 1) found.push(word[0]);
              }
          }
          return found;
        }"""
    )
    assert broken == []


def test_on_a_phone_numbers_stand_at_the_left_and_empty_cells_nowhere(shown: Callable[..., Page]) -> None:
    opened = "document.querySelectorAll('details').forEach(one => one.open = true)"
    page = shown(reports.rich(), 360, 740)
    page.evaluate(opened)
    number = page.locator("td.num").first
    assert number.evaluate("one => getComputedStyle(one).textAlign") == "left"
    assert page.locator("td.none").count() > 0
    assert not page.locator("td.none").first.is_visible()
    wide = shown(reports.rich())
    wide.evaluate(opened)
    assert wide.locator("td.none").first.is_visible()


@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: str(screen[0]))
@pytest.mark.parametrize("language", ["en", "de"])
def test_the_answer_and_the_first_reason_are_on_the_first_screen(
    shown: Callable[..., Page], screen: tuple[int, int], language: str, tmp_path: Path
) -> None:
    page = shown(reports.rich(language=language), *screen)
    parts = [page.locator("h1"), *page.locator(".tiles li").all(), *page.locator(".terms dd").all()]
    parts += [page.locator(".lines .stop .say").first]
    if screen[0] > 700:
        parts += page.locator(".lines .stop").all()
    for part in parts:
        box = part.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= screen[1], part.text_content()


def test_folded_tables_open_without_a_script(shown: Callable[..., Page]) -> None:
    page = shown(reports.rich())
    section = page.locator("details.card", has=page.locator("#s7"))
    folded = page.locator("#s7 details", has_text="Removed by the rules").first
    row = folded.locator("tbody tr").first
    assert not row.is_visible()
    section.locator("summary").first.click()
    assert not row.is_visible()
    folded.locator("summary").click()
    assert row.is_visible()


def test_a_link_of_a_finding_leads_to_its_section(shown: Callable[..., Page]) -> None:
    page = shown(reports.rich())
    page.locator(".lines .stop a").first.click()
    box = page.locator("#s7").bounding_box()
    assert box is not None
    assert -5 <= box["y"] <= 80
    assert page.locator("#s7 > *").first.is_visible()  # the link opens the section
    assert page.url.endswith("#s7")


def test_it_prints_with_what_is_folded(shown: Callable[..., Page], tmp_path: Path) -> None:
    page = shown(reports.rich())
    page.emulate_media(media="print")
    assert page.locator("#s7 details", has_text="Removed by the rules").first.locator("tbody tr").first.is_visible()
    assert page.locator("nav + .card").evaluate("one => getComputedStyle(one).breakBefore") == "page"
    assert not page.locator("nav").is_visible()
    assert len(page.pdf()) > 10_000


def test_without_styles_a_reader_hears_the_answer_first(shown: Callable[..., Page]) -> None:
    page = shown(reports.rich())
    snapshot = page.locator("main").aria_snapshot()
    answer, first = snapshot.index("Do not release"), snapshot.index("mothersMaidenName")
    assert answer < first < snapshot.index("Contents")
    assert 'heading "Do not release" [level=1]' in snapshot
