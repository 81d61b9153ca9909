"""Section 2: what ``send`` will really read, and where it goes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tasks.release_report.measure.measured import MeasuredFile
from tasks.release_report.report.disclosure import Disclosure
from tasks.release_report.report.document import Fact
from tasks.release_report.report.facts import Facts
from tasks.release_report.report.outline import Parts, fact, table
from tasks.shared.publication import cells
from tasks.shared.publication_by_type import parted

MOST_FILES = 30
"""Files that are shown one by one."""


def leaving(facts: Facts, show: Disclosure, resources: int | None) -> Parts:
    """Yield section 2; all files are in ``files.csv`` beside the page.

    ``resources`` are those of section 6, added up as they are printed there: files and total are made of them (R1).
    """
    files = facts.leaving.files
    uncounted = {*facts.leaving.unread, *facts.leaving.unchecked}
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


def _destination(facts: Facts) -> list[Fact]:
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
