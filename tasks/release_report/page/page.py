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
from typing import Final, Literal, NamedTuple

import jinja2
from markupsafe import Markup

from tasks.release_report.page.words import Words, visible
from tasks.release_report.publication import HIDDEN, Count
from tasks.release_report.report.document import (
    LEVELS,
    Level,
    ReleaseReport,
    ReportFinding,
    ReportSection,
    Table,
    Value,
    sha256,
)

HIGH: Final = 40
"""Of the frame of a graph."""

_BARS: Final = {"flow": "patients", "types": "patients"}
"""Columns that a graph shows where the document does not name one."""

_PERIODS: Final = (("year",), ("quarter",), ("month",))
_PERIOD: Final = re.compile(r"(\d{4})(?:-(?:Q([1-4])|(\d\d)))?", re.ASCII)
_PERCENT: Final = re.compile(r"(\d{1,3}) ?%", re.ASCII)
_LONGEST: Final = 400
"""Periods on one axis."""


class Series(NamedTuple):
    """The bars of one column over time, as a path in a frame of ``width`` × ``HIGH``; ``most`` is the largest value."""

    name: str
    most: Value
    path: str


class Chart(NamedTuple):
    """Patients over time, a series below the other, all on one axis from ``first`` to ``last``."""

    first: Value
    last: Value
    width: int
    series: tuple[Series, ...]


def bars(report: ReleaseReport, table: Table, columns: Sequence[str]) -> tuple[int, list[int]] | None:
    """Return which of the columns shown has bars, and how long they are, of 100; ``None`` if none has.

    The longest bar is that of all patients, where one is.
    """
    column = table.bars or _BARS.get(table.name)
    if column not in columns:
        return None
    at, k = columns.index(column), report.k
    values = [row[at] for row in table.rows]
    everybody = length(report.tiles.patients, k) if any(map(_is_all, values)) else 0
    largest = max([everybody, *(length(value, k) for value in values)])
    lengths = [largest if _is_all(value) else length(value, k) for value in values]
    return at, [round(100 * one / largest) if largest else 0 for one in lengths]


def chart_of(table: Table, k: int, columns: int) -> Chart | None:
    """Return each column behind the first one over the periods of the first; ``None`` if a period is none."""
    places = [_place_in_time(row[0]) for row in table.rows] if table.columns[:1] in _PERIODS else []
    known = [place for place in places if place is not None]
    if len(known) < len(places) or len(known) < 2 or max(known) - min(known) > _LONGEST:
        return None
    first = min(known)
    rows = list(zip(known, table.rows, strict=True))
    largest = max((length(value, k) for _, row in rows for value in row[1:]), default=0) or 1
    series = []
    for at, name in enumerate(table.columns[1:columns], start=1):
        found = [(place - first, length(row[at], k), row[at]) for place, row in rows if at < len(row)]
        top = max(found, key=lambda one: one[1], default=(0, 0.0, None))[2]
        bars = "".join(f"M{x} {HIGH}V{HIGH - round(HIGH * y / largest)}h.8V{HIGH}" for x, y, _ in found if y)
        series.append(Series(name, top, bars))
    return Chart(rows[0][1][0], rows[-1][1][0], max(known) - first + 1, tuple(series))


def length(value: Value, k: int) -> float:
    """Return how long the bar of a value is, beside those of others."""
    if isinstance(value, Count):
        return {"none": 0, "fewer": k / 2, "some": k}.get(value.word, value.number or 0)
    if isinstance(value, str):
        percent = _PERCENT.fullmatch(value)
        return float(percent[1]) if percent else 0
    return value if isinstance(value, (int, float)) else 0


def _place_in_time(value: Value) -> int | None:
    """Return a year, a quarter or a month as a number that counts on; ``None`` for anything else."""
    found = _PERIOD.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    if found[2]:
        return int(found[1]) * 4 + int(found[2]) - 1
    return int(found[1]) * 12 + int(found[3]) - 1 if found[3] else int(found[1])


def _is_all(value: Value) -> bool:
    return isinstance(value, Count) and value.word in {"all", "all_but_fewer"}


LARGEST: Final = 150_000
"""Bytes of the page, of any document."""

ITEMS: Final = 3
"""Of many findings of a kind so many are shown before the others are folded; as many as these are shown alone."""

TERMS: Final = ("purpose", "legal_basis", "recipient", "retention", "consent", "contact")
"""Facts of section 3 that the first screen shows."""

_OPEN_TERMS: Final = frozenset({None, "@not-given", "@no-query", "@consent-unchecked"})
"""Values of these that a person has to ask about."""

_FIRST: Final = {"unspoken": 60}
"""Rows of long lists: what is first in them is what a person looks at."""

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

_DECISION: Final = 17
_RULES: Final = 18
_UNCHECKED: Final = 14


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
        min(len(table.rows), _rows(table, limits)) * min(len(table.columns), limits.columns)
        for section in report.sections for table in section.tables[: limits.parts]
    )  # fmt: skip


def _rows(table: Table, limits: PageLimits) -> int:
    """Return how many rows of a table are shown at most."""
    return min(limits.rows, _FIRST.get(table.name, limits.rows))


def outcome(report: ReleaseReport) -> Literal["released", "despite", "rejected", "sent", "sent_despite"] | None:
    """Return what was decided, or that the data left without; ``None`` while not all have who must.

    How many must is the fact ``reviewers`` of section 17.
    """
    if report.sent == "undecided":
        return "sent_despite" if report.tiles.stops else "sent"
    if any(not one.approved for one in report.decisions):
        return "rejected"
    needed = report.fact("reviewers")
    if len(report.decisions) < max(1, needed if isinstance(needed, int) else 1):
        return None
    return "despite" if report.tiles.stops else "released"


def _render(report: ReleaseReport, limits: PageLimits) -> str:
    words = Words.of_report(report, space="\N{NO-BREAK SPACE}")
    sections = {section.number: section for section in report.sections}
    unchecked = next((sections[at].said for at in (1, _UNCHECKED) if at in sections and sections[at].said), ())
    sections.setdefault(_DECISION, ReportSection(number=_DECISION, name="decision"))
    sections.setdefault(_RULES, ReportSection(number=_RULES, name="rules"))

    def cut(text: str) -> str:
        most = limits.letters
        return visible(text) if len(text) <= most else f"{visible(text[:most])}…"

    return _template().render(
        report=report, w=words, terms=TERMS, open_terms=_OPEN_TERMS, limits=limits, levels=LEVELS, items=ITEMS, cut=cut,
        text=lambda value, name="": cut(words.value(value, name)),
        verdict=verdict(report), answer=outcome(report) or verdict(report), digest=sha256(report),
        unchecked=[name for name in unchecked if name != "nothing-found"][: limits.findings],
        sections=[_in_language(sections[number], report.language) for number in sorted(sections) if number > 1],
        findings_of=lambda what, value: [one for one in report.findings if getattr(one, what) == value],
        alike_of=partial(_alike, words), more_of=partial(_left_out, limits),
        rows_of=lambda table: table.rows[: _rows(table, limits)],
        bars_of=lambda table: bars(report, table, table.columns[: limits.columns]),
        chart_of=lambda table: chart_of(table, report.k, limits.columns),
    )  # fmt: skip


def _in_language(section: ReportSection, language: str) -> ReportSection:
    """Return a section without the steps' warnings, which are English sentences, on a page in another language. The
    JSON has them; how many each step gave is in the table of steps.
    """
    if language == "en" or all(table.name != "warnings" for table in section.tables):
        return section
    kept = tuple(table for table in section.tables if table.name != "warnings")
    return section.model_copy(update={"tables": kept, "said": (*section.said, "warnings-in-english")})


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
    return value in (None, HIDDEN) or (isinstance(value, Count) and value.word in {"none", "fewer", "all_but_fewer"})


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
