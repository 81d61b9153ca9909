"""A release report in a few lines: as an artifact of the Prefect UI, for the form, for a terminal (document 5, §3).

Tiles, stops, points to check, the path of the page, and the decision. No codes of the data, no table of contents; names
of paths, files and hosts are shown as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from config import ReportConfig
from flows.job.record import JobRecord
from flows.job.waiting import Shown
from flows.output import one_line
from flows.prefect.artifacts import REPORT, Page
from flows.reports.markdown import best_effort, code, literal
from tasks.release_report.page import files
from tasks.release_report.page.page import outcome, verdict
from tasks.release_report.page.words import Words, joined, visible
from tasks.release_report.report.document import Level, ReleaseReport, ReportFinding
from tasks.shared.errors import DataError

LARGEST: Final = 4_000
"""Bytes of the markdown."""

_LETTERS: Final = 200
"""Of a path, a host or a word of a person."""

_SHOWN: Final[tuple[Level, ...]] = ("stop", "look")


def publish(page: Page, directory: Path, shown: Shown, position: int | None, language: str) -> None:
    """Publish the short form as an artifact of the run, on ``page``; ``directory`` is the job's.

    A missing report is published in ``language``.
    """
    with best_effort("the short form of the release report"):
        if shown.failed is not None:
            missing = Words(language, k=0)("form_missing", why=literal(shown.failed))
            page.publish(f"{REPORT}: missing", f"{missing}\n")
            return
        report = files.read(directory, position)
        if report is not None and shown.page is not None:
            where = str(directory / shown.page)
            title = f"{REPORT}: {literal(headline(report))}"
            page.publish(title, short(report, where=where))


def add_decisions(page: Page, directory: Path, record: JobRecord, position: int, settings: ReportConfig) -> None:
    """Put the decisions at a wait into its release report, and publish its short form again.

    What cannot be written stops nobody.
    """
    shown = record.shown.get(position)
    if shown is None:
        return
    with best_effort("the decision in the release report"):
        files.decided(directory, position, [record.decisions[position]])
        publish(page, directory, shown, position, settings.language)


def headline(report: ReleaseReport) -> str:
    """Return whether the data may be released, in one sentence."""
    words, level = Words.of_report(report), verdict(report)
    answer = outcome(report) or level
    number = report.tiles.stops if level == "stop" else report.tiles.looks
    said = f"{words(f'verdict_{answer}', n=number)}."
    return said if answer == "sent_despite" else f"{said} {words(f'short_{level}', n=number)}"


def tiles(report: ReleaseReport) -> str:
    """Return the data to be sent and their destination, in one line."""
    words, found = Words.of_report(report), report.tiles
    patients = words("patients", n=found.patients)
    where = one_line(_cut(words.value(found.destination))) or words("nowhere")
    way = "" if found.encrypted is None else f" ({words('encrypted' if found.encrypted else 'not_encrypted')})"
    what = f"{words('files', n=found.files)}, {words.size(found.bytes)}, {words('resources', n=found.resources)}"
    return f"{patients}; {what}; {words('tile_destination')}: {where}{way}"


def lines(report: ReleaseReport, most: int = 20) -> list[str]:
    """Return the short form for a terminal: the result, the data to be sent, and at most ``most`` findings."""
    words = Words.of_report(report)
    shown = [one for level in _SHOWN for one in report.findings if one.level == level]
    found = [f"  {words(one.level).upper()}: {_finding_line(words, one, one_line, visible)}" for one in shown[:most]]
    left = len(shown) - most
    return [headline(report), tiles(report), *found, *([f"  {words('short_more', n=left)}"] if left > 0 else [])]


def lines_at(directory: Path, position: int | None) -> list[str]:
    """Return the short form of the report for the step at ``position`` of the job in ``directory``, if there is one."""
    with suppress(DataError):
        report = files.read(directory, position)
        return lines(report) if report is not None else []
    return []


def short(report: ReleaseReport, *, where: str) -> str:
    """Return the short form as Markdown, at most ``LARGEST`` bytes. ``where`` is the page's path on its machine."""
    for most, letters in ((20, _LETTERS), (10, _LETTERS), (5, 100), (2, 60), (0, 40)):
        text = "\n".join(_markdown(report, most, letters, where)) + "\n"
        if len(text.encode()) <= LARGEST:
            break
    return text


def _markdown(report: ReleaseReport, most: int, letters: int, where: str) -> Iterator[str]:
    words = Words.of_report(report)
    head, _, why = headline(report).partition(". ")
    why = why or words("because_sent_despite")
    yield from (f"## {head.removesuffix('.')}", "", why, "", literal(tiles(report)), "")
    for level in _SHOWN:
        found = [one for one in report.findings if one.level == level]
        for one in found[:most]:
            said = _finding_line(words, one, lambda text: code(_cut(one_line(text), letters)), literal)
            yield f"- **{words(level)}**: {said}"
        if len(found) > most:
            yield f"- **{words(level)}**: {words('short_more', n=len(found) - most)}"
    yield ""
    yield from (f"{words('page_where')}: {code(_cut(where, 400))}", "")
    for decision in report.decisions[:2]:
        yield from (words.decision(decision, lambda text: literal(_cut(one_line(text), letters))), "")


def _finding_line(words: Words, finding: ReportFinding, data: Callable[[str], str], ours: Callable[[str], str]) -> str:
    """Return a finding in one line; ``data`` formats a path or a name, ``ours`` the words around it."""
    affects = f" ({words.patients(finding.patients)})" if finding.patients is not None else ""
    return f"{joined(words.finding(finding), data, ours)}{affects}"


def _cut(text: str, most: int = _LETTERS) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
