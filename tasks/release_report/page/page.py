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
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Final, Literal

import jinja2
from markupsafe import Markup

from tasks.release_report.page.figures import Chart, bar_column, bar_lengths, chart_of
from tasks.release_report.page.words import Words, visible
from tasks.release_report.report.document import LEVELS, Finding, Level, ReleaseReport, Section, Table, Value, sha256
from tasks.shared.publication import HIDDEN, Count

LARGEST: Final = 150_000
"""Bytes of the page, of any document."""

ITEMS: Final = 3
"""Of many findings of a kind so many are shown before the others are folded; as many as these are shown alone."""

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

_REPEATED: Final = frozenset({11})
"""Sections whose tables do not have what their findings are about: they repeat the findings."""
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
    """Return what the findings come to; ``note`` when nothing speaks against it."""
    if report.tiles.stops:
        return "stop"
    return "look" if report.tiles.looks else "note"


def _cells(report: ReleaseReport, limits: Limits) -> int:
    """Return how many cells the tables have within the limits."""
    return sum(
        min(len(table.rows), _rows(table, limits)) * min(len(table.columns), limits.columns)
        for section in report.sections for table in section.tables[: limits.parts]
    )  # fmt: skip


def _rows(table: Table, limits: Limits) -> int:
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
    facts = [one for section in report.sections if section.number == _DECISION for one in section.facts]
    needed = next((one.value for one in facts if one.name == "reviewers" and isinstance(one.value, int)), 1)
    if len(report.decisions) < max(1, needed):
        return None
    return "despite" if report.tiles.stops else "released"


def _render(report: ReleaseReport, limits: Limits) -> str:
    words = Words.of_report(report, space="\N{NO-BREAK SPACE}")
    return _template().render(
        report=report, w=words, page=_Page(report, limits, words), limits=limits, levels=LEVELS, items=ITEMS,
        verdict=verdict(report), answer=outcome(report) or verdict(report), digest=sha256(report),
    )  # fmt: skip


@dataclass(frozen=True)
class _Page:
    """What the template asks for: texts within the limits, and what belongs together."""

    report: ReleaseReport
    limits: Limits
    words: Words

    def cut(self, text: str) -> str:
        """Return a text within the limit of its length."""
        most = self.limits.letters
        return visible(text) if len(text) <= most else f"{visible(text[:most])}…"

    def text(self, value: Value, name: str = "") -> str:
        """Return the words for a value of a column or fact."""
        return self.cut(self.words.value(value, name))

    def breakable(self, text: str, *, address: bool = False) -> Markup:
        """Return a text that may be broken behind its signs."""
        return Markup("<wbr>").join((_ADDRESS_SIGNS if address else _SIGNS).split(text))

    def is_hash(self, text: str) -> bool:
        """Return whether a text is a SHA-256."""
        return _HASH.fullmatch(text) is not None

    @property
    def patients(self) -> str:
        """The number of the first tile."""
        patients, words = self.report.tiles.patients, self.words
        if isinstance(patients, int):
            return words.number(patients)
        said = words.count(patients)
        return words("tile_about", number=said) if patients.word == "about" else said

    @property
    def unchecked(self) -> list[str]:
        """Names of what was not checked, as section 1 has them, else section 14."""
        for number in (1, _UNCHECKED):
            for section in self.report.sections:
                if section.number == number and section.said:
                    return [name for name in section.said if name != "nothing-found"][: self.limits.findings]
        return []

    @property
    def sections(self) -> list[Section]:
        """Sections 2 to 18: those of the decision and of the rules stand on each page."""
        found = {section.number: section for section in self.report.sections if section.number > 1}
        found.setdefault(_DECISION, Section(number=_DECISION, name="decision"))
        found.setdefault(_RULES, Section(number=_RULES, name="rules"))
        return [found[number] for number in sorted(found)]

    def findings(self, level: Level) -> list[Finding]:
        """Return the findings of a level, also those that are not shown."""
        return [one for one in self.report.findings if one.level == level]

    def repeated(self, section: Section) -> list[Finding]:
        """Return the findings that a section repeats."""
        found = [one for one in self.report.findings if one.section == section.number]
        return found[: self.limits.findings] if section.number in _REPEATED else []

    def alike(self, findings: Sequence[Finding]) -> Iterator[list[Finding]]:
        """Yield the findings of each line: those that follow each other and are many of a kind share one."""
        for code, group in groupby(findings, key=lambda one: one.code):
            alike = list(group)
            if len(alike) > ITEMS and self.words.many(code, len(alike)):
                yield alike
            else:
                yield from ([one] for one in alike)

    def beside(self, finding: Finding) -> str:
        """Return the figures of a finding beside what it is about."""
        said = [self.text(value, name) for name, value in finding.values.items()]
        patients = [self.words.patients(finding.patients)] if finding.patients is not None else []
        return ", ".join([*said, *patients])

    def marks(self, section: Section) -> list[tuple[Level, int]]:
        """Return how many findings of each level point at a section."""
        levels = [one.level for one in self.report.findings if one.section == section.number]
        return [(level, levels.count(level)) for level in LEVELS if level in levels]

    def more(self, section: Section) -> int:
        """Return how many sentences, facts, tables and columns of a section are not shown."""
        most = self.limits.parts
        return sum(len(parts[most:]) for parts in (section.said, section.facts, section.tables)) + sum(
            len(table.columns[self.limits.columns :]) for table in section.tables[:most]
        )

    def rows(self, table: Table) -> tuple[tuple[Value, ...], ...]:
        """Return the rows of a table that are shown."""
        return table.rows[: _rows(table, self.limits)]

    def columns(self, table: Table) -> list[tuple[str, str, bool]]:
        """Return name and heading of each column that is shown, and whether it stands at the right: it has numbers, and
        nothing else."""
        bars = self.bar_column(table)
        found = []
        for at, name in enumerate(table.columns[: self.limits.columns]):
            cells = [row[at] for row in self.rows(table) if at < len(row)]
            numbers = [_is_number(value) and at != bars for value in cells]
            right = any(numbers) and all(map(lambda value, number: number or _is_small(value), cells, numbers))
            found.append((name, self.cut(self.words.of("columns", name)), right))
        return found

    def styles(self, value: Value, text: str, *, number: bool = False, first: bool = False) -> str:
        """Return the classes of a cell: ``any`` breaks anywhere, ``one`` nowhere, ``none`` is not shown on a phone."""
        found = {
            "num": number,
            "few": _is_small(value) and not first,
            "any": _is_unbroken(text),
            "one": value in _MARKS,
            "none": value in (None, ""),
        }
        return " ".join(name for name, there in found.items() if there)

    def bar_column(self, table: Table) -> int:
        """Return the column with bars, -1 if there is none."""
        return bar_column(table, table.columns[: self.limits.columns])

    def bars(self, table: Table) -> list[int]:
        """Return the length of each row's bar; none if the table has no bars."""
        at = self.bar_column(table)
        return bar_lengths(self.report, table, at, len(self.rows(table))) if at >= 0 else []

    def chart(self, table: Table) -> Chart | None:
        """Return the graph over time that a table has, if it has one."""
        return chart_of(table, self.report.k, self.limits.columns)


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
    return environment.get_template("page.html.j2")
