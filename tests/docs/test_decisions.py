"""``docs/decisions``: a short page each with date and status, and an index of all of them."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

from tests.docs.pages import DECISIONS, read

INDEX = DECISIONS[0].parent / "README.md"
RECORDS = [page for page in DECISIONS if page != INDEX]

HEAD = re.compile(
    r"# (?P<number>\d{4}) (?P<title>.+)\n\n"
    r"- \*\*Date\*\*: (?P<date>\d{4}-\d\d-\d\d)\n"
    r"- \*\*Status\*\*: (?P<status>accepted|deprecated"
    r"|superseded by \[(?P<by>\d{4})\]\((?P<successor>[\w-]+\.md)\))\n"
)


def head(page: Path) -> re.Match[str]:
    found = HEAD.match(read(page))
    assert found, "number and title; date; accepted, deprecated, or superseded by a link to the successor"
    return found


@pytest.mark.parametrize("page", RECORDS, ids=lambda page: page.stem)
class TestEveryDecision:
    def test_it_has_its_number_a_date_and_a_status(self, page: Path) -> None:
        assert head(page)["number"] == page.name[:4]
        assert re.fullmatch(r"\d{4}(-[a-z0-9]+)+\.md", page.name)
        date.fromisoformat(head(page)["date"])

    def test_it_says_why_and_what_else_on_one_short_page(self, page: Path) -> None:
        said = re.findall(r"^- \*\*(.+?)\*\*: ", read(page), re.MULTILINE)
        wanted = ["Date", "Status", "Context", "Decision", "Why", "Else"]
        assert said in (wanted, [*wanted, "Consequences"])
        assert len(read(page).splitlines()) <= 40

    def test_one_that_is_superseded_names_a_later_one_that_is_there(self, page: Path) -> None:
        if successor := head(page)["successor"]:
            assert page.with_name(successor) in RECORDS
            assert head(page)["by"] == successor[:4] > page.name[:4]


def test_the_index_lists_every_decision_in_order_and_nothing_else() -> None:
    rows = [line for line in read(INDEX).splitlines() if line.startswith("|")][2:]
    heads = {page: head(page) for page in RECORDS}
    assert rows == [
        f"| [{h['number']}]({page.name}) | {h['title']} | {h['date']} | {h['status']} |" for page, h in heads.items()
    ]
    assert [h["number"] for h in heads.values()] == [f"{number:04d}" for number in range(1, len(RECORDS) + 1)]
