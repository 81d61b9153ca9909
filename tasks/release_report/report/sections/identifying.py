"""Section 7: what still identifies, by path and kind, and what the rules did about it."""

from __future__ import annotations

from collections.abc import Iterator

from config import Role
from tasks.release_report.measure.measured import Measured, Path, Values
from tasks.release_report.measure.spoken import Spoken, is_of_person
from tasks.release_report.report import changes
from tasks.release_report.report.document import Fact, Section, Table, Value
from tasks.release_report.report.facts import Facts
from tasks.release_report.report.findings import kind_word, left_level
from tasks.release_report.report.teller import Teller, fact, table
from tasks.shared.publication import HIDDEN, NONE

MOST_ROWS = 60
"""Paths, URLs or systems that a table shows."""

ID_KINDS = ("hashed", "uuid", "sequential", "other")
PRECISIONS = ("year", "month", "day", "time")


def section(facts: Facts, tell: Teller) -> Section:
    """Section 7. Its alarms are shown for any number of patients, all else from ``k`` patients on."""
    rows, said = list(_left(facts, tell)), []
    ids = facts.leaving.ids
    if not rows and not ids.kinds.get("original") and not ids.referred:
        said.append("nothing-left")
    if facts.imported is None:
        said.append("originals-unchecked")
    tables = [table("left", ("path", "kind", "patients_before", "patients", "original", "level"), rows[:MOST_ROWS])]
    if tell.enough:
        tables += _attachments(facts.leaving, tell)
        tables += _one_each(facts.leaving, tell)
        tables.append(_ids(facts.leaving.ids.kinds, tell))
        tables += _precision(facts.leaving, tell)
        tables += changes.tables(facts, tell)
        tables.append(_urls("extensions", "url", facts.leaving.extensions, tell))
        tables.append(_urls("identifier_systems", "system", facts.leaving.identifier_systems, tell))
        tables += _removed(facts, tell)
        tables += _unspoken(facts, tell)
    return Section(
        number=7,
        name="identifying",
        said=tuple(said),
        facts=tuple(_facts(facts, tell)),
        tables=tuple(one for one in tables if one.rows or one.withheld or one.name == "left"),
    )


def _left(facts: Facts, tell: Teller) -> Iterator[list[Value]]:
    seen: set[tuple[str, str]] = set()
    found = [*facts.leaving.paths.items(), *facts.leaving.undefined.items()]
    for path, at in sorted(found, key=lambda one: (one[0], one[1].kind)):
        judged = left_level(facts, path, at)
        shown = tell.path(path, at.patients)
        if judged is None or (shown, at.kind) in seen:
            continue
        seen.add((shown, at.kind))
        yield [
            shown,
            kind_word(at.kind),
            _before(facts, path, tell, at.patients),
            tell.count(at.patients) if at.patients else "@of-nobody",
            _original(facts, at, tell),
            f"@{judged[1]}",
        ]


def _original(facts: Facts, at: Path, tell: Teller) -> Value:
    """Who still has an original value at a path; nothing is said where that was not compared."""
    if at.original:
        return tell.count(at.original)
    if at.original_nobody:
        return "@of-nobody"
    return NONE if facts.imported is not None and at.compared and at.kind != "undefined" else None


def _before(facts: Facts, path: str, tell: Teller, now: int) -> Value:
    """Who had something at a path when it was imported; a table has other paths."""
    if facts.imported is None or facts.leaving.tables:
        return None
    then = facts.imported.paths.get(path)
    if then is None:
        return NONE
    return "@of-nobody" if then.nobody and not then.patients else tell.before(then.patients, now)


def _facts(facts: Facts, tell: Teller) -> Iterator[Fact]:
    rules = facts.rules
    if rules is not None:
        yield fact("rules_file", rules.name)
        yield fact("rules_sha256", rules.sha256)
    else:
        yield fact("rules_file", "@services-own-rules" if facts.step_with(Role.PSEUDONYMIZE) else "@no-rules")
    if facts.kept:
        yield fact("kept_identifiers", ", ".join(facts.kept)[:300])
    yield fact("above_89", tell.count(facts.leaving.above_89))
    shift = facts.leaving.shift
    if shift is not None and tell.enough:
        partly = any(dates.raw for dates in facts.leaving.dates.values())
        word = {"none": "@not-shifted", "one": "@one-for-all", "own": "@by-patient"}[shift]
        yield fact("date_shift", "@shifted-partly" if partly and shift != "none" else word)


def _attachments(measured: Measured, tell: Teller) -> Iterator[Table]:
    rows: list[list[Value]] = []
    withheld = False
    for path, types in sorted(measured.attachments.items()):
        known = tell.shared(types)
        withheld = withheld or len(known) < len(types)
        rows += [[tell.path(path), mime, tell.count(n)] for mime, n in known.items()]
    yield table("attachments", ("path", "mime_type", "patients"), rows[:MOST_ROWS], withheld=withheld)


def _one_each(measured: Measured, tell: Teller) -> Iterator[Table]:
    found = [path for path, at in sorted(measured.paths.items()) if at.one_each and at.patients >= tell.k]
    rows = [(tell.path(path), tell.count(measured.paths[path].patients)) for path in found]
    if rows:
        yield table("one_each", ("path", "patients"), rows[:MOST_ROWS], folded=True)


def _ids(values: Values, tell: Teller) -> Table:
    cells = tell.cells({kind: values.get(kind, 0) for kind in ID_KINDS})
    rows: list[list[Value]] = [[f"@ids-{kind}", cells.shown.get(kind, HIDDEN)] for kind in ID_KINDS]
    rows.append(["@ids-original", tell.count(values.get("original", 0))])
    return table("ids", ("form", "patients"), rows, withheld=cells.other is not None)


def _precision(measured: Measured, tell: Teller) -> Iterator[Table]:
    rows: list[list[Value]] = []
    withheld = False
    for path, dates in sorted(measured.dates.items()):
        if dates.patients < tell.k:
            withheld = withheld or dates.patients > 0
            continue
        cells = tell.cells({one: dates.precision.get(one, 0) for one in PRECISIONS})
        withheld = withheld or cells.other is not None
        rows.append([tell.path(path), *(cells.shown.get(one, HIDDEN) for one in PRECISIONS)])
    yield table("date_precision", ("path", *PRECISIONS), rows[:MOST_ROWS], withheld=withheld, folded=True)


def _urls(name: str, column: str, values: Values, tell: Teller) -> Table:
    """Patients by the URL of an extension, or by a system."""
    shown = {value: n for value, n in values.items() if tell.text(value, n) is not None}
    rows = [(value, tell.coded(n, value)) for value, n in sorted(shown.items())]
    return table(name, (column, "patients"), rows[:MOST_ROWS], withheld=len(shown) < len(values))


def _removed(facts: Facts, tell: Teller) -> Iterator[Table]:
    """What was in ``import/`` and is nowhere any more, by path."""
    if facts.imported is None or facts.leaving.tables:
        return
    there = facts.leaving.paths
    gone = [path for path, at in facts.imported.paths.items() if path not in there and at.patients >= tell.k]
    rows = [
        (path, kind_word(at.kind) if at.kind else None, tell.before(at.patients))
        for path in sorted(gone)
        for at in [facts.imported.paths[path]]
        if len(path) <= 300
    ]
    if rows:
        yield table("removed", ("path", "kind", "patients_before"), rows[:MOST_ROWS], folded=True)


def _unspoken(facts: Facts, tell: Teller) -> Iterator[Table]:
    """Paths that no rule speaks of, those of persons first (7i). All of them: the page shows the first."""
    rules = facts.rules
    if rules is None or facts.leaving.tables:
        return
    spoken = Spoken(path for path, _ in rules.paths)
    found = [path for path, at in facts.leaving.paths.items() if at.patients >= tell.k and not spoken.of(path)]
    found.sort(key=lambda path: (not is_of_person(path), path))
    rows = {tell.path(path): tell.count(facts.leaving.paths[path].patients) for path in found}
    if rows:
        yield table("unspoken", ("path", "patients"), rows.items(), folded=True)
