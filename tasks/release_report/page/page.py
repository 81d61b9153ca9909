"""The page of a release report: one HTML file that says whether the data may leave, and if not, why (document 5, §3).

Nothing in it runs, and nothing comes from elsewhere: no script, styles and graphs inline, every text escaped by the
template. It shows what is in the document and nothing else. A browser that is asked to do more is forbidden to by the
page's own Content-Security-Policy.

However long the document is, the page has at most ``LARGEST`` bytes: long tables are cut, with a line that says how
many rows the JSON beside it has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Final, Literal

import jinja2
from markupsafe import Markup

from tasks.release_report.page.words import Words, visible
from tasks.release_report.report.document import (
    LEVELS,
    Level,
    ReleaseReport,
    ReportFinding,
    ReportSection,
    Value,
)
from tasks.release_report.report.numbers import HIDDEN, Count

LARGEST: Final = 150_000
"""Bytes of the page, of any document."""

ITEMS: Final = 3
"""Of many findings of a kind so many are shown before the others are folded; as many as these are shown alone."""

TERMS: Final = ("purpose", "legal_basis", "recipient", "retention", "consent", "contact")
"""Facts of section 3 that the first screen shows."""

_OPEN_TERMS: Final = frozenset({None, "@not-given", "@no-query", "@consent-unchecked"})
"""Values of these that a person has to ask about."""

_FIGURE: Final = re.compile(r"-?[\d.,]{1,20}( ?%)?", re.ASCII)
_HASH: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_WORDS: Final = re.compile(r"[\s/.:@]+")
_SIGNS: Final = re.compile(r"(?<=[/.:@])(?=[^\W\d])")
"""Where a path may be broken, and no number."""
_ADDRESS_SIGNS: Final = re.compile(r"(?<=[/.:@])(?=[^/.:@])")
"""Where an address in a narrow tile may be broken."""
_WORD: Final = 28
"""Letters of the longest word that a cell is made wide enough for."""
_MARKS: Final = frozenset(f"@{level}" for level in LEVELS)

_UNCHECKED: Final = 9
_DECISION: Final = 10


@dataclass(frozen=True)
class PageLimits:
    """Limits of a long document on the page: rows and columns of a table, letters of a text, findings of a level, and
    tables, facts and sentences of a section.
    """

    rows: int
    columns: int
    letters: int
    findings: int
    parts: int


_LIMITS: Final = (
    PageLimits(rows=200, columns=40, letters=400, findings=200, parts=100),
    PageLimits(rows=60, columns=20, letters=300, findings=100, parts=60),
    PageLimits(rows=20, columns=12, letters=200, findings=50, parts=30),
    PageLimits(rows=8, columns=12, letters=120, findings=25, parts=10),
    PageLimits(rows=3, columns=8, letters=60, findings=10, parts=4),
    PageLimits(rows=1, columns=4, letters=24, findings=10, parts=2),
)
"""From generous to what fits whatever the document holds, in signs of four bytes or five letters each."""

_CELL: Final = 24
"""Bytes of the shortest cell: a page with more cells than fit by that is not tried."""


def html(report: ReleaseReport) -> str:
    """Return the page of a report, at most ``LARGEST`` bytes of UTF-8."""
    text = ""
    for limits in _LIMITS:
        if limits is _LIMITS[-1] or _cells(report, limits) * _CELL <= LARGEST:
            text = _render(report, limits)
            if len(text.encode()) <= LARGEST:
                break
    return text


def verdict(report: ReleaseReport) -> Level:
    """Return the level of the most severe finding; ``note`` when nothing speaks against a release."""
    if report.tiles.stops:
        return "stop"
    return "look" if report.tiles.looks else "note"


def _cells(report: ReleaseReport, limits: PageLimits) -> int:
    """Return how many cells the tables have within the limits."""
    return sum(
        min(len(table.rows), limits.rows) * min(len(table.columns), limits.columns)
        for section in report.sections for table in section.tables[: limits.parts]
    )  # fmt: skip


def outcome(report: ReleaseReport) -> Literal["released", "despite", "rejected", "sent", "sent_despite"] | None:
    """Return what was decided, or that the data left without; ``None`` while nobody has decided."""
    if report.sent == "undecided":
        return "sent_despite" if report.tiles.stops else "sent"
    if not report.decisions:
        return None
    if not report.decisions[-1].approved:
        return "rejected"
    return "despite" if report.tiles.stops else "released"


def _render(report: ReleaseReport, limits: PageLimits) -> str:
    words = Words.of_report(report, space="\N{NO-BREAK SPACE}")
    sections = {section.number: section for section in report.sections}
    unchecked = next((sections[at].said for at in (1, _UNCHECKED) if at in sections and sections[at].said), ())
    sections.setdefault(_DECISION, ReportSection(number=_DECISION, name="decision"))

    def cut(text: str) -> str:
        most = limits.letters
        return visible(text) if len(text) <= most else f"{visible(text[:most])}…"

    return _template().render(
        report=report, w=words, terms=TERMS, open_terms=_OPEN_TERMS, limits=limits, levels=LEVELS, items=ITEMS, cut=cut,
        text=lambda value, name="": cut(words.value(value, name)),
        verdict=verdict(report), answer=outcome(report) or verdict(report),
        unchecked=[name for name in unchecked if name != "nothing-found"][: limits.findings],
        sections=[sections[number] for number in sorted(sections) if number > 1],
        findings_of=lambda what, value: [one for one in report.findings if getattr(one, what) == value],
        alike_of=partial(_alike, words), more_of=partial(_left_out, limits),
        rows_of=lambda table: table.rows[: limits.rows],
    )  # fmt: skip


def _alike(words: Words, findings: Sequence[ReportFinding]) -> Iterator[list[ReportFinding]]:
    """Yield the findings of each line: those that follow each other and are many of a kind share one."""
    for code, group in groupby(findings, key=lambda one: one.code):
        alike = list(group)
        if len(alike) > ITEMS and words.many(code, len(alike)):
            yield alike
        else:
            yield from ([one] for one in alike)


def _left_out(limits: PageLimits, section: ReportSection) -> int:
    """Return how many sentences, facts, tables and columns of a section are not shown."""
    most = limits.parts
    return sum(len(parts[most:]) for parts in (section.said, section.facts, section.tables)) + sum(
        len(table.columns[limits.columns :]) for table in section.tables[:most]
    )


def _breakable(text: str, *, address: bool = False) -> Markup:
    """Return a text that may be broken behind its signs."""
    return Markup("<wbr>").join((_ADDRESS_SIGNS if address else _SIGNS).split(text))


def _is_right(rows: Sequence[Sequence[Value]], at: int) -> bool:
    """Return whether a column stands at the right: it has numbers, and nothing else."""
    cells = [row[at] for row in rows if at < len(row)]
    return any(map(_is_number, cells)) and all(_is_number(value) or _is_small(value) for value in cells)


def _is_number(value: Value) -> bool:
    if isinstance(value, str):
        return _FIGURE.fullmatch(value) is not None
    return isinstance(value, (Count, int, float)) and not isinstance(value, bool)


def _is_small(value: Value) -> bool:
    return value in (None, HIDDEN) or (isinstance(value, Count) and value.word in {"none", "fewer"})


def _is_unbroken(text: str) -> bool:
    """Return whether a text has a word that a cell must break wherever it is full: a URL, a hash, what is no word."""
    return "://" in text or any(len(word) > _WORD for word in _WORDS.split(text))


@cache
def _template() -> jinja2.Template:
    place = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(place), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"breakable": _breakable, "is_right": _is_right}
    environment.tests |= {
        "small": _is_small,
        "unbroken": _is_unbroken,
        "digest": lambda text: _HASH.fullmatch(text) is not None,
        "mark": _MARKS.__contains__,
    }
    return environment.get_template("page.html.j2")
