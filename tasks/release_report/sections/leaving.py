"""Section 2: what ``send`` will really read, and where it goes."""

from __future__ import annotations

from collections.abc import Collection

from tasks.release_report.document import Fact, Section, Value
from tasks.release_report.facts import Facts
from tasks.release_report.measured import MeasuredFile
from tasks.release_report.teller import Teller, fact, table
from tasks.shared.publication import cells, technical

MOST_FILES = 30
"""Files that are shown one by one."""


def section(facts: Facts, tell: Teller) -> Section:
    """Section 2; all files are in ``files.csv`` beside the page."""
    files = facts.leaving.files
    uncounted = {*facts.leaving.unread, *facts.leaving.unchecked}
    shown, others = split(files, tell.k, uncounted)
    alone = len(files) == 1
    lines = sum(file.lines for file in files)
    exact = not tell.recipient
    rows: list[list[Value]] = [
        [tell.file(file.name), *_figures([file], exact=alone and exact), file.sha256] for file in shown
    ]
    if others:
        rows.append(["@other-files" if shown else "@all-files", *_figures(others, exact=not shown and exact), None])
    facts_ = [
        fact("files", len(files)),
        fact("stored_bytes", sum(file.bytes for file in files)),
        fact("content_bytes", sum(file.content for file in files)),
        fact("lines", tell.whole(lines)),
        fact("resources", tell.whole(sum(file.resources for file in files))),
        fact("digest", facts.files),
    ]
    return Section(
        number=2,
        name="leaving",
        said=("tables-leave",) if facts.leaving.tables else (),
        facts=(*_destination(facts), *facts_),
        tables=(
            table(
                "files",
                ("file", "bytes", "content_bytes", "lines", "resources", "sha256"),
                rows,
                rounded=len(rows) > 1 or tell.recipient,
                withheld=any(0 < file.patients < tell.k or file.name in uncounted for file in files),
                folded=len(files) > 10,
            ),
        ),
    )


def _destination(facts: Facts) -> list[Fact]:
    to = facts.destination
    if to is None:
        return [fact("destination", "@no-destination")]
    given = [
        fact("mode", to.mode),
        fact("host", to.host),
        fact("path", to.path),
        fact("bucket", to.bucket),
        fact("project", to.project),
        fact("organization", to.organization),
        fact("authentication", f"@auth-{to.authentication}"),
    ]
    asked = [fact("encrypted", to.encrypted), fact("private", to.private), fact("first_time", to.first_time)]
    return [one for one in given if one.value] + asked


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


def _figures(files: list[MeasuredFile], *, exact: bool) -> list[Value]:
    """Stored and content bytes, lines, resources; the last two rounded where they are not those of the whole."""
    lines, resources = sum(file.lines for file in files), sum(file.resources for file in files)
    return [
        sum(file.bytes for file in files),
        sum(file.content for file in files),
        lines if exact else technical(lines),
        resources if exact else technical(resources),
    ]
