"""The page of a release report: one HTML file without a script, at most ``LARGEST`` bytes (docs/review.md).

It shows the document and nothing else; the template escapes every text. Long lists are cut, with a
line that says how many more the JSON has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Final

import jinja2

from tasks.release_report.document import LEVELS, Level, ReleaseReport, ReportFinding, Value
from tasks.release_report.numbers import Count
from tasks.release_report.words import Words
from tasks.shared.markdown import visible

LARGEST: Final = 150_000
"""Most bytes of the page."""

ALIKE: Final = 3
"""More findings of a kind than this share one line: it shows this many, and the others are folded."""

_HASH: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class PageLimits:
    """The most rows of a table, findings of a level, and characters of a text."""

    rows: int
    findings: int
    letters: int


_LIMITS: Final = (PageLimits(200, 100, 400), PageLimits(40, 50, 150), PageLimits(5, 10, 60))
"""Tried in order until the page fits; it always fits with the last."""


def html(report: ReleaseReport) -> str:
    """Return the page of a report."""
    text = ""
    for limits in _LIMITS:
        text = _render(report, limits)
        if len(text.encode()) <= LARGEST:
            break
    return text


def alike(words: Words, findings: Sequence[ReportFinding]) -> Iterator[list[ReportFinding]]:
    """Yield the findings of each line: many of a kind share one."""
    for code, group in groupby(findings, key=lambda one: one.code):
        found = list(group)
        if len(found) > ALIKE and words.many(code, len(found)):
            yield found
        else:
            yield from ([one] for one in found)


def _render(report: ReleaseReport, limits: PageLimits) -> str:
    words = Words.of(report)

    def cut(text: str) -> str:
        return visible(text if len(text) <= limits.letters else f"{text[: limits.letters]}…")

    def of_level(level: Level) -> list[ReportFinding]:
        return [one for one in report.findings if one.level == level]

    def in_section(number: int) -> dict[str, int]:
        found = [one.level for one in report.findings if one.section == number]
        return {level: found.count(level) for level in LEVELS if level in found}

    return _template().render(
        report=report, w=words, limits=limits, alike_limit=ALIKE, cut=cut, of_level=of_level, in_section=in_section,
        alike=lambda found: alike(words, found), text=lambda value, name="": cut(words.value(value, name)),
        counts={level: report.number_of(level) for level in LEVELS},
        n=report.number_of("stop") or report.number_of("look"),
    )  # fmt: skip


def _is_figure(value: Value) -> bool:
    return isinstance(value, Count | int)


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.tests |= {"figure": _is_figure, "digest": lambda text: _HASH.fullmatch(str(text)) is not None}
    return environment.get_template("page.html.j2")
