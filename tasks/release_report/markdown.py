"""The release report as Markdown, for an artifact of the Prefect UI, and in a few lines, for a terminal and the form.

Texts from the data or from a person are escaped, or shown as code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tasks.release_report.document import LEVELS, Decided, ReleaseReport, ReportFinding, ReportSection, Table
from tasks.release_report.page import ALIKE, alike
from tasks.release_report.words import Words
from tasks.shared.markdown import code, literal, visible

MOST_ROWS: Final = 50
"""Most rows of a table in the artifact."""

_MOST_FINDINGS: Final = 100
_LETTERS: Final = 300


def title(report: ReleaseReport) -> str:
    """Return the verdict, in a line."""
    words = Words.of(report)
    return words(f"verdict_{report.answer}", n=report.number_of("stop") or report.number_of("look"))


def lines(report: ReleaseReport, most: int = 20) -> list[str]:
    """Return the report in short: verdict, data and destination, and at most ``most`` lines of findings."""
    words = Words.of(report)
    found = list(alike(words, [one for one in report.findings if one.level != "note"]))
    said = [f"  {words(group[0].level).upper()}: {_line(words, group)}" for group in found[:most]]
    more = [f"  {words('more', n=len(found) - most)}"] if len(found) > most else []
    return [title(report), _tiles(report, words), *said, *more]


def _line(words: Words, group: Sequence[ReportFinding]) -> str:
    """Return a finding, or many of a kind with the first paths, in a line of plain text."""
    if len(group) == 1:
        return _sentence(words, group[0], visible)
    first = ", ".join(visible(one.about) for one in group[:ALIKE])
    return f"{words.many(group[0].code, len(group))} {first}, {words('and_more', n=len(group) - ALIKE)}"


def markdown(report: ReleaseReport, where: str) -> str:
    """Return the whole report as Markdown. ``where`` is the path of the page on its machine."""
    return "\n".join(_markdown(report, where)) + "\n"


def _markdown(report: ReleaseReport, where: str) -> Iterator[str]:
    words = Words.of(report)
    yield from (f"# {title(report)}", "", words(f"because_{report.because}"), "")
    yield from (words("sent_on", when=words.moment(report.sent)), "") if report.sent else ()
    yield from (words("said_inside"), "") if report.inside else ()
    yield from (f"## 1 {words('tiles')}", "", f"**{literal(_tiles(report, words))}**", "")
    for name, value in report.tiles.terms.items():
        yield f"- {words(name)}: {literal(_cut(value)) if value else words('not_given')}"
    yield from ("", f"## 2 {words('tile_findings')}", "")
    yield from _findings(report, words)
    for section in report.sections:
        yield from _section(report, section, words)
    yield from ("", f"{words('page_where')}: {_code(where)}", "", words("footer"))


def _findings(report: ReleaseReport, words: Words) -> Iterator[str]:
    if report.level == "note":
        yield from (words("nothing_found"), "")
    for level in LEVELS:
        found = [one for one in report.findings if one.level == level]
        for group in alike(words, found[:_MOST_FINDINGS]):
            if len(group) > 1:
                yield f"- **{words(level)}**: {words.many(group[0].code, len(group))} {words.advice(group[0].code)}"
                yield from (f"  - {_item(words, one)}" for one in group)
            else:
                yield f"- **{words(level)}**: {_sentence(words, group[0], literal)} {words.advice(group[0].code)}"
        if len(found) > _MOST_FINDINGS:
            yield f"- **{words(level)}**: {words('more', n=len(found) - _MOST_FINDINGS)}"


def _item(words: Words, one: ReportFinding) -> str:
    urls = f" ({_code(str(one.values['urls']))})" if "urls" in one.values else ""
    affected = words.affected(one)
    kind = f", {words(f'kind-{one.kind}')}" if one.kind else ""
    return f"{_code(one.about)}{urls}{kind}" + (f": {literal(affected)}" if affected else "")


def _section(report: ReleaseReport, section: ReportSection, words: Words) -> Iterator[str]:
    yield from ("", f"## {section.number} {words(f'section_{section.name}')}", "", words(f"lead_{section.number}"), "")
    for name in section.sentences:
        yield f"- {words(f'said_{name}')}"
    for name, value in section.facts.items():
        yield f"- {words(f'fact_{name}')}: {literal(_cut(words.value(value, name)))}"
    if section.name == "decision":
        yield from (f"- {_decision(words, one)}" for one in report.decisions)
        yield from [] if report.decisions else [words("undecided" if report.outcome == "waits" else "because_unasked")]
    for table in section.tables:
        yield from _table(table, words)


def _table(table: Table, words: Words) -> Iterator[str]:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    yield from ("", f"**{words(f'table_{table.name}')}**", "")
    yield from (row([words(f"column_{name}") for name in table.columns]), "|" + "---|" * len(table.columns))
    for cells in table.rows[:MOST_ROWS]:
        texts = (words.value(value, name) for value, name in zip(cells, table.columns, strict=True))
        yield row([literal(_cut(text).replace("\n", " ")) for text in texts])
    if len(table.rows) > MOST_ROWS:
        yield from ("", words("more", n=len(table.rows) - MOST_ROWS))


def _tiles(report: ReleaseReport, words: Words) -> str:
    tiles = report.tiles
    where = visible(tiles.destination) if tiles.destination else words("nowhere")
    way = "" if tiles.encrypted is None else f" ({words('encrypted' if tiles.encrypted else 'not_encrypted')})"
    what = words("n_rows" if tiles.tables else "n_resources", n=tiles.resources)
    size = words.size(tiles.bytes).replace("\N{NO-BREAK SPACE}", " ")
    files = f"{words('n_files', n=tiles.files)}, {size}, {what}"
    return f"{words('n_patients', n=tiles.patients)}; {files}; {words('tile_destination')}: {where}{way}"


def _sentence(words: Words, finding: ReportFinding, ours: Callable[[str], str]) -> str:
    """Return a finding in a line; ``ours`` escapes the words around paths and names."""
    shown = _code if ours is literal else visible
    said = "".join(shown(piece.text) if piece.data else ours(piece.text) for piece in words.finding(finding))
    affected = words.affected(finding)
    return said + (f" {words('affects')}: {ours(affected)}." if affected else "")


def _decision(words: Words, one: Decided) -> str:
    by = words("decided_by", by=literal(one.by), when=words.moment(one.when), where=words(f"where_{one.where}"))
    said = f"{words('verdict_released' if one.approved else 'verdict_rejected')} {by}"
    return said + (f". {words('comment')}: {literal(_cut(one.comment))}" if one.comment else "")


def _code(text: str) -> str:
    return code(_cut(text))


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]}…"
