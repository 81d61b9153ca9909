"""The page of a release report: one HTML file that says whether the data may leave, and if not, why (document 5, §3).

Nothing in it runs, and nothing comes from elsewhere: no script, styles and graphs inline, every text escaped by the
template. It shows what is in the document and nothing else. A browser that is asked to do more is forbidden to by the
page's own Content-Security-Policy.

However long the document is, the page has at most ``LARGEST`` bytes: long tables are cut, with a line that says how
many rows the JSON beside it has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Final, Literal

import jinja2
from markupsafe import Markup, escape

from tasks.release_report.page.words import Piece, Words, visible
from tasks.release_report.report.digest import sha256
from tasks.release_report.report.document import LEVELS, Finding, Level, ReleaseReport, Section, Table, Value
from tasks.shared.publication import HIDDEN, Count

LARGEST: Final = 150_000
"""Bytes of the page, of any document."""

ITEMS: Final = 3
"""Of many findings of a kind so many are shown before the others are folded; as many as these are shown alone."""

HIGH: Final = 40
"""Of the frame of a graph."""

_BARS: Final = {"flow": "patients", "types": "patients"}
"""Columns that a graph shows where the document does not say."""

_FIRST: Final = {"unspoken": 60}
"""Rows of long lists: what is first in them is what a person looks at."""

_PERIODS: Final = (("year",), ("quarter",), ("month",))
_PERIOD: Final = re.compile(r"(\d{4})(?:-(?:Q([1-4])|(\d\d)))?", re.ASCII)
_PERCENT: Final = re.compile(r"(\d{1,3}) ?%", re.ASCII)
_FIGURE: Final = re.compile(r"-?[\d.,]{1,20}( ?%)?", re.ASCII)
_HASH: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_WORDS: Final = re.compile(r"[\s/.:@]+")
_SIGNS: Final = re.compile(r"(?<=[/.:@])(?=[^\W\d])")
"""Where a path may be broken, and no number."""
_WORD: Final = 28
"""Letters of the longest word that a cell is made wide enough for."""
_MARKS: Final = frozenset(f"@{level}" for level in LEVELS)
_LONGEST: Final = 400
"""Periods on one axis."""

_REPEATED: Final = frozenset({11})
"""Sections whose tables do not have what their findings are about: they say it again."""
_DECISION: Final = 17
_RULES: Final = 18
_UNCHECKED: Final = 14


@dataclass(frozen=True)
class Limits:
    """How much of a long document the page shows: rows and columns of a table, letters of a text, findings of a level,
    and tables, facts and sentences of a section.
    """

    rows: int
    columns: int
    letters: int
    findings: int
    parts: int


_LIMITS: Final = (
    Limits(rows=200, columns=40, letters=400, findings=200, parts=100),
    Limits(rows=60, columns=20, letters=300, findings=100, parts=60),
    Limits(rows=20, columns=12, letters=200, findings=50, parts=30),
    Limits(rows=8, columns=12, letters=120, findings=25, parts=10),
    Limits(rows=3, columns=8, letters=60, findings=10, parts=4),
    Limits(rows=1, columns=4, letters=24, findings=10, parts=2),
)
"""From generous to what fits whatever the document holds, in signs of four bytes or five letters each."""

_CELL: Final = 24
"""Bytes of the shortest cell: a page with more cells than fit by that is not tried."""


@dataclass(frozen=True)
class Line:
    """A finding as the page shows it, or many of a kind: ``items`` are what each is about, and the rest of it."""

    level: Level
    sentence: Markup
    patients: str
    advice: Markup
    section: int
    items: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Cell:
    """A cell; ``bar`` is how long its bar is, of 100, where it has one.

    ``styles`` are those of its kind: ``any`` breaks anywhere, ``one`` nowhere, ``none`` has nothing to show on a phone.
    """

    text: str
    number: bool = False
    small: bool = False
    bar: int | None = None
    styles: tuple[str, ...] = ()

    @property
    def shown(self) -> Markup:
        """The text; a path may be broken behind its signs."""
        return Markup("<wbr>").join(_SIGNS.split(self.text))

    @property
    def is_hash(self) -> bool:
        """Whether it is a SHA-256."""
        return _HASH.fullmatch(self.text) is not None

    def css(self, *, number: bool) -> str:
        """Its classes in a column of numbers, or in another one."""
        return " ".join([*(["num"] if number else []), *(["few"] if self.small else []), *self.styles])


@dataclass(frozen=True)
class Grid:
    """A table; ``more`` rows are not shown."""

    caption: str
    columns: tuple[str, ...]
    numbers: tuple[bool, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: int
    withheld: bool
    rounded: bool
    folded: bool
    chart: Chart | None


@dataclass(frozen=True)
class Series:
    """The bars of one column over time, as a path in a frame of ``width`` × ``HIGH``."""

    name: str
    most: str
    path: str


@dataclass(frozen=True)
class Chart:
    """Patients over time, a series below the other, all on one axis from ``first`` to ``last``."""

    label: str
    first: str
    last: str
    width: int
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Part:
    """A section; ``marks`` are the findings that point at it, by level, ``more`` facts and tables are not shown.
    ``lines`` are those findings, where the section has nothing else to say of them.
    """

    number: int
    title: str
    lead: str
    said: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    tables: tuple[Grid, ...]
    marks: tuple[tuple[Level, int], ...]
    lines: tuple[Line, ...]
    more: int


def html(report: ReleaseReport) -> str:
    """The page of a report, at most ``LARGEST`` bytes of UTF-8."""
    text = ""
    for limits in _LIMITS:
        if limits is _LIMITS[-1] or _cells(report, limits) * _CELL <= LARGEST:
            text = _Page(report, limits).text()
            if len(text.encode()) <= LARGEST:
                break
    return text


def verdict(report: ReleaseReport) -> Level:
    """What the findings come to; ``note`` when nothing speaks against it."""
    if report.tiles.stops:
        return "stop"
    return "look" if report.tiles.looks else "note"


def _cells(report: ReleaseReport, limits: Limits) -> int:
    """How many cells the tables have within the limits."""
    return sum(
        min(len(table.rows), _rows(table, limits)) * min(len(table.columns), limits.columns)
        for section in report.sections for table in section.tables[: limits.parts]
    )  # fmt: skip


def _rows(table: Table, limits: Limits) -> int:
    """How many rows of a table are shown at most."""
    return min(limits.rows, _FIRST.get(table.name, limits.rows))


def outcome(report: ReleaseReport) -> Literal["released", "despite", "rejected", "sent", "sent_despite"] | None:
    """What was decided, or that the data left without; ``None`` while not all have who must (the fact ``reviewers`` of
    section 17).
    """
    if report.sent == "undecided":
        return "sent_despite" if report.tiles.stops else "sent"
    if any(not one.approved for one in report.decisions):
        return "rejected"
    facts = [one for section in report.sections if section.number == _DECISION for one in section.facts]
    needed = next((one.value for one in facts if one.name == "reviewers" and isinstance(one.value, int)), 1)
    if len(report.decisions) < max(1, needed):
        return None
    return "despite" if report.tiles.stops else "released"


class _Page:
    def __init__(self, report: ReleaseReport, limits: Limits) -> None:
        self._report = report
        self._limits = limits
        self._words = Words.of_report(report, space="\N{NO-BREAK SPACE}")

    def text(self) -> str:
        report, words = self._report, self._words
        most = self._limits.findings
        found = {level: [one for one in report.findings if one.level == level] for level in LEVELS}
        return _template().render(
            report=report,
            w=words,
            verdict=verdict(report),
            answer=outcome(report) or verdict(report),
            destination=_breakable(self._cut(words.value(report.tiles.destination))),
            patients=self._patients(),
            lines={level: self._lines(some[:most]) for level, some in found.items()},
            left={level: len(some[most:]) for level, some in found.items()},
            notes=len(found["note"]),
            items=ITEMS,
            unchecked=[self._cut(words.of("said", name)) for name in self._unchecked()[:most]],
            sections=[self._part(part) for part in self._sections()],
            digest=sha256(report),
            decisions=report.decisions[:most],
            cut=self._cut,
        )

    def _unchecked(self) -> list[str]:
        """Names of what was not checked, as section 1 says it, else section 14."""
        for number in (1, _UNCHECKED):
            for section in self._report.sections:
                if section.number == number and section.said:
                    return [name for name in section.said if name != "nothing-found"]
        return []

    def _patients(self) -> str:
        """The number of the first tile."""
        patients, words = self._report.tiles.patients, self._words
        if isinstance(patients, int):
            return words.number(patients)
        said = words.count(patients)
        return words("tile_about", number=said) if patients.word == "about" else said

    def _sections(self) -> list[Section]:
        """Sections 2 to 18: those of the decision and of the rules stand on each page."""
        found = {section.number: section for section in self._report.sections if section.number > 1}
        found.setdefault(_DECISION, Section(number=_DECISION, name="decision"))
        found.setdefault(_RULES, Section(number=_RULES, name="rules"))
        return [found[number] for number in sorted(found)]

    def _lines(self, findings: Sequence[Finding]) -> list[Line]:
        """A line for each finding; those that follow each other and are many of a kind share one."""
        lines: list[Line] = []
        for code, group in groupby(findings, key=lambda one: one.code):
            alike = list(group)
            sentence = self._words.many(code, len(alike))
            if len(alike) <= ITEMS or not sentence:
                lines += map(self._line, alike)
                continue
            items = tuple((self._cut(self._words.value(one.about)), self._beside(one)) for one in alike)
            line = self._line(alike[0])
            lines.append(replace(line, sentence=escape(sentence), patients="", items=items))
        return lines

    def _beside(self, finding: Finding) -> str:
        """What is said of a finding beside what it is about."""
        said = [self._cut(self._words.value(value, name)) for name, value in finding.values.items()]
        patients = [self._words.patients(finding.patients)] if finding.patients is not None else []
        return ", ".join([*said, *patients])

    def _line(self, finding: Finding) -> Line:
        patients = self._words.patients(finding.patients) if finding.patients is not None else ""
        return Line(
            level=finding.level,
            sentence=self._sentence(self._words.finding(finding)),
            patients=patients,
            advice=self._sentence(self._words.advice(finding)),
            section=finding.section,
        )

    def _sentence(self, pieces: Sequence[Piece]) -> Markup:
        """A sentence in which what is no word of ours stands out."""
        shown = (
            Markup("<code>{}</code>").format(self._cut(one.text)) if one.data else escape(one.text) for one in pieces
        )
        return Markup("").join(shown)

    def _part(self, section: Section) -> Part:
        words, most = self._words, self._limits.parts
        found = [one for one in self._report.findings if one.section == section.number]
        levels = [one.level for one in found]
        marks = tuple((level, levels.count(level)) for level in LEVELS if level in levels)
        repeated = found[: self._limits.findings] if section.number in _REPEATED else []
        lead = f"lead_{section.number}"
        return Part(
            number=section.number,
            title=self._cut(words.of("sections", section.name)),
            lead=words(lead, k=self._report.k) if words.knows("page", lead) else "",
            said=tuple(self._cut(words.of("said", name)) for name in section.said[:most]),
            facts=tuple(
                (self._cut(words.of("facts", one.name)), self._cut(words.value(one.value, one.name)))
                for one in section.facts[:most]
            ),
            tables=tuple(self._grid(table) for table in section.tables[:most]),
            marks=marks,
            lines=tuple(replace(line, section=0) for line in self._lines(repeated)),
            more=sum(len(parts[most:]) for parts in (section.said, section.facts, section.tables))
            + sum(len(table.columns[self._limits.columns :]) for table in section.tables[:most]),
        )

    def _grid(self, table: Table) -> Grid:
        shown = table.rows[: _rows(table, self._limits)]
        columns = table.columns[: self._limits.columns]
        bars = table.bars or _BARS.get(table.name)
        at = columns.index(bars) if bars in columns else -1
        largest = self._largest([row[at] for row in table.rows]) if at >= 0 else 0
        rows = []
        for row in shown:
            cells = [self._cell(value, name) for value, name in zip(row, columns, strict=False)]
            if at >= 0:
                length = largest if _is_all(row[at]) else _length(row[at], self._report.k)
                bar = round(100 * length / largest) if largest else 0
                cells[at] = replace(cells[at], number=False, bar=bar)
            rows.append(tuple(cells))
        return Grid(
            caption=self._cut(self._words.of("tables", table.name)),
            columns=tuple(self._cut(self._words.of("columns", name)) for name in columns),
            numbers=tuple(_is_of_numbers([row[n] for row in rows if n < len(row)]) for n in range(len(columns))),
            rows=tuple(rows),
            more=len(table.rows) - len(shown),
            withheld=table.withheld,
            rounded=table.rounded,
            folded=table.folded,
            chart=self._chart(table) if table.columns[:1] in _PERIODS else None,
        )

    def _largest(self, values: Sequence[Value]) -> float:
        """How long the longest bar of a column is: that of all patients, where one is."""
        everybody = self._report.tiles.patients
        all_ = _length(everybody, self._report.k) if any(map(_is_all, values)) else 0
        return max([all_, *(_length(value, self._report.k) for value in values)])

    def _chart(self, table: Table) -> Chart | None:
        """Each column behind the first one over the periods of the first; none where a period is none."""
        places = [_place_in_time(row[0]) for row in table.rows]
        known = [place for place in places if place is not None]
        if len(known) < len(places) or len(known) < 2 or max(known) - min(known) > _LONGEST:
            return None
        k, first = self._report.k, min(known)
        rows = list(zip(known, table.rows, strict=True))
        largest = max((_length(value, k) for _, row in rows for value in row[1:]), default=0) or 1
        series = []
        for at, name in enumerate(table.columns[1 : self._limits.columns], start=1):
            found = [(place - first, _length(row[at], k), row[at]) for place, row in rows if at < len(row)]
            top = max(found, key=lambda one: one[1], default=(0, 0.0, None))[2]
            bars = "".join(f"M{x} {HIGH}V{HIGH - round(HIGH * y / largest)}h.8V{HIGH}" for x, y, _ in found if y)
            series.append(Series(self._cut(self._words.of("columns", name)), self._words.value(top), bars))
        words = self._words
        label = words("chart", table=words.of("tables", table.name), period=words.of("columns", table.columns[0]))
        ends = (self._cut(words.value(rows[0][1][0])), self._cut(words.value(rows[-1][1][0])))
        return Chart(label, *ends, max(known) - first + 1, tuple(series))

    def _cell(self, value: Value, name: str) -> Cell:
        number = isinstance(value, (Count, int, float)) and not isinstance(value, bool)
        number = number or (isinstance(value, str) and _FIGURE.fullmatch(value) is not None)
        small = value in (None, HIDDEN) or (
            isinstance(value, Count) and value.word in {"none", "fewer", "all_but_fewer"}
        )
        text = self._cut(self._words.value(value, name))
        styles = [
            *(["any"] if _is_unbroken(text) else []),
            *(["one"] if value in _MARKS else []),
            *(["none"] if value in (None, "") else []),
        ]
        return Cell(text, number, small, styles=tuple(styles))

    def _cut(self, text: str) -> str:
        most = self._limits.letters
        return visible(text) if len(text) <= most else f"{visible(text[:most])}…"


def _breakable(address: str) -> Markup:
    """An address that a narrow tile breaks behind its signs."""
    return Markup("<wbr>").join(re.split(r"(?<=[/.:@])(?=[^/.:@])", address))


def _is_unbroken(text: str) -> bool:
    """Whether a text has a word that a cell must break wherever it is full: a URL, a hash, what is no word."""
    return "://" in text or any(len(word) > _WORD for word in _WORDS.split(text))


def _is_of_numbers(cells: Sequence[Cell]) -> bool:
    """Whether a column stands at the right: all that is in it are numbers, and no bars."""
    return any(cell.number for cell in cells) and all(cell.number or cell.small for cell in cells)


def _length(value: Value, k: int) -> float:
    """How long the bar of a value is, beside those of others."""
    if isinstance(value, Count):
        return {"none": 0, "fewer": k / 2, "some": k}.get(value.word, value.number or 0)
    if isinstance(value, str):
        percent = _PERCENT.fullmatch(value)
        return float(percent[1]) if percent else 0
    return value if isinstance(value, (int, float)) else 0


def _place_in_time(value: Value) -> int | None:
    """A year, a quarter or a month as a number that counts on; ``None`` for anything else."""
    found = _PERIOD.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    if found[2]:
        return int(found[1]) * 4 + int(found[2]) - 1
    return int(found[1]) * 12 + int(found[3]) - 1 if found[3] else int(found[1])


def _is_all(value: Value) -> bool:
    return isinstance(value, Count) and value.word in {"all", "all_but_fewer"}


@cache
def _template() -> jinja2.Template:
    place = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(place), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html.j2")
