"""Sections 2, 4 and 6: the patients from the query to the delivery, resources by type, and what ``send`` will read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from config import Role
from tasks.release_report.measure.measured import MeasuredFile
from tasks.release_report.publication import HIDDEN, cells, flow
from tasks.release_report.publication_counts import by_type, parted
from tasks.release_report.report.disclosure import Disclosure
from tasks.release_report.report.document import Fact, ReportSection, Value
from tasks.release_report.report.facts import ReportFacts
from tasks.release_report.report.findings import TECHNICAL
from tasks.release_report.report.outline import Parts, fact, table
from tasks.release_report.report.sections.query import CONSENT, checked_or, numbers_of

MOST_FILES = 30
"""Files that are shown one by one."""


def delivered_files(facts: ReportFacts, show: Disclosure, resources: int | None) -> Parts:
    """Yield section 2; all files are in ``files.csv`` beside the page.

    ``resources`` are those of section 6, added up as they are printed there: files and total are made of them (R1).
    """
    files = facts.leaving.files
    uncounted = set(facts.leaving.unread)
    shown, others = split(files, show.k, uncounted)
    parts = [*([file] for file in shown), *([others] if others else [])]
    figures = _figures(parts, show, resources)
    names = [show.file(file.name) for file in shown] + (["@other-files" if shown else "@all-files"] if others else [])
    rows = [
        (
            name,
            show.bytes(sum(file.bytes for file in part)),
            show.bytes(sum(file.content for file in part)),
            *of_part,
            part[0].sha256 if part is not others else None,
        )
        for name, part, of_part in zip(names, parts, figures, strict=True)
    ]
    if facts.leaving.tables:
        yield "tables-leave"
    yield from _destination(facts)
    yield fact("files", show.files(len(files)))
    yield fact("stored_bytes", show.bytes(sum(file.bytes for file in files)))
    yield fact("content_bytes", show.bytes(sum(file.content for file in files)))
    yield fact("lines", sum(lines for lines, _ in figures))
    yield fact("resources", sum(of_file for _, of_file in figures))
    yield fact("digest", facts.files)
    few = any(0 < file.patients < show.k or file.name in uncounted for file in files)
    yield table("files", rows, withheld=few, folded=len(files) > 10)


def _destination(facts: ReportFacts) -> list[Fact]:
    to = facts.destination
    if to is None:
        return [fact("destination", "@no-destination")]
    given = [fact(name, getattr(to, name)) for name in ("mode", "host", "path", "bucket", "project", "organization")]
    way = [fact(name, getattr(to, name)) for name in ("encrypted", "private", "first_time")]
    return [*(one for one in given if one.value), fact("authentication", f"@auth-{to.authentication}"), *way]


def split(
    files: tuple[MeasuredFile, ...], k: int, uncounted: Collection[str] = ()
) -> tuple[list[MeasuredFile], list[MeasuredFile]]:
    """R1: the files whose figures are shown, largest first, and the others, whose figures are added up.

    Figures of a file are shown where it holds ``k`` patients, or nobody's data; a line is a patient in most files, so
    the files are disjoint cells (R4). Of ``uncounted`` ones nobody knows whose they are: each may be one patient's.
    """
    ranked = sorted(files, key=lambda file: (-file.bytes, file.name))
    patients = {file.name: 1 if file.name in uncounted else file.patients for file in files}
    published = cells({name: number for name, number in patients.items() if number}, k).shown
    shown = [file for file in ranked if not patients[file.name] or file.name in published][:MOST_FILES]
    return shown, [file for file in ranked if file not in shown]


def _figures(parts: Sequence[Sequence[MeasuredFile]], show: Disclosure, resources: int | None) -> list[tuple[int, int]]:
    """Return lines and resources of files, as printed (R1).

    They are parts of a printed total, so that files say no more of it than their proportions. Where each line is one
    resource, lines are the same numbers.
    """
    weights = [sum(max(file.resources, show.least_beside(file.patients)) for file in part) for part in parts]
    lines = [sum(max(file.lines, show.least_beside(file.patients)) for file in part) for part in parts]
    total = show.technical(sum(weights)) if resources is None else resources
    printed = parted(total, weights, recipient=show.recipient)
    if all(file.lines == file.resources for part in parts for file in part):
        return [(number, number) for number in printed]
    # Of lines that are patients no total is printed that tells more than theirs.
    of_lines = parted(show.technical(sum(lines)), lines, recipient=show.recipient)
    return list(zip(of_lines, printed, strict=True))


def patients(facts: ReportFacts, show: Disclosure) -> Parts:
    """Yield section 4. Figures around the number of patients are said as R6 allows it."""
    if not show.enough:
        yield "too-few"
        yield fact("patients", show.everybody())
        return
    extraction = facts.step_with(Role.EXTRACT)
    details: dict[str, Any] = extraction.details if extraction is not None else {}
    said = flow(show.all, reversed(facts.around), show.k, rounded=show.recipient)
    rows: list[list[Value]] = [[name, said[name] or HIDDEN, None] for name, _ in facts.around]
    rows.append(["@leaving", show.everybody(), _reason(facts)])
    yield table("flow", rows, withheld=None in said.values())
    consent = facts.query is not None and facts.query.asks_for_consent
    stages = numbers_of(details.get("patient_exclusions"))
    if stages:
        by_stage = show.cells(stages)
        lost: list[list[Value]] = [
            [f"@stage-{name.lower()}", checked_or(number, checked=consent or name != CONSENT)]
            for name, number in by_stage.shown.items()
        ]
        if by_stage.other is not None:
            lost.append(["@other-stages", by_stage.other])
        yield table("excluded", lost, withheld=by_stage.other is not None)


def _reason(facts: ReportFacts) -> str | None:
    if facts.corrected:
        return "@corrected"
    if facts.imported is None:
        return "@not-compared"
    if facts.imported.patients == facts.leaving.patients:
        return "@as-imported"
    return "@rules-remove" if facts.rules is not None and facts.rules.removes else "@unexplained"


def types(facts: ReportFacts, show: Disclosure) -> Parts:
    """Yield section 6. Where a type has few patients at any step it is among the other types at each (R1)."""
    known = facts.imported is not None and not facts.leaving.tables  # tables are no types
    before = facts.imported.types if facts.imported is not None and known else {}
    columns = [
        {name: (of.resources - of.nobody, of.patients, of.nobody) for name, of in step.items()}
        for step in (facts.leaving.types, before)
    ]
    totals = [show.all, show.all_before]
    (after_, before_), others = by_type(columns, show.k, of=totals, recipient=show.recipient)
    rows: list[list[Value]] = []
    for name in sorted(after_):
        then_, now_ = before_[name], after_[name]
        rows.append(
            [
                show.type(name),
                then_.resources if known else None,
                then_.patients if known else None,
                now_.resources,
                now_.patients,
                _mark(facts, name),
            ]
        )
    if others is not None:
        after, was = others
        rows.append(
            ["@other-types", was.resources if known else None, was.patients if known else None,
             after.resources, after.patients, None]
        )  # fmt: skip
    nobody: list[list[Value]] = [
        [show.type(name), of.nobody, _mark(facts, name)] for name, of in sorted(after_.items()) if of.nobody
    ]
    if nobody:
        yield "nobody-said"
    yield table("types", rows, withheld=others is not None)
    yield table("nobody", nobody)


def resources(sections: Iterable[ReportSection]) -> int | None:
    """Return the resources of section 6 added up as they are printed; ``None`` where they are not."""
    tables = [one for section in sections for one in section.tables if one.name == "types"]
    columns = [(one, one.columns.index("resources")) for one in tables]
    return sum(n for one, at in columns for row in one.rows if isinstance(n := row[at], int)) if columns else None


def _mark(facts: ReportFacts, name: str) -> str | None:
    if name in TECHNICAL:
        return "@technical"
    if facts.query is None or facts.leaving.tables:
        return None
    return "@asked" if name in facts.query.types else "@not-asked"
