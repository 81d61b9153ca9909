"""Section 7: what still identifies, by path and kind, and what the rules did about it."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.release_report.measure.measured import Measured, Path, Values
from tasks.release_report.report import changes
from tasks.release_report.report.disclosure import Disclosure
from tasks.release_report.report.document import Fact, Table, Value
from tasks.release_report.report.facts import ReportFacts
from tasks.release_report.report.findings import code_of_path, kind_word
from tasks.release_report.report.numbers import NONE
from tasks.release_report.report.outline import FINDINGS, TABLES, Parts, fact, table

ID_KINDS = ("hashed", "uuid", "sequential", "other", "original")
PRECISIONS = TABLES["date_precision"].columns[1:]


def identifying(facts: ReportFacts, show: Disclosure) -> Parts:
    """Yield section 7. Its findings are shown for any number of patients, texts of the data from ``k`` patients on."""
    rows, ids = list(_identifying_rows(facts, show)), facts.leaving.ids
    if not rows and not ids.kinds.get("original") and not ids.referred:
        yield "nothing-left"
    if facts.imported is None:
        yield "originals-unchecked"
    yield from _facts(facts, show)
    yield table("left", (row for code, row in rows if code != "texts-beside-codes"))
    yield table("beside_codes", (row for code, row in rows if code == "texts-beside-codes"))
    yield _ids(facts.leaving.ids.kinds, show)
    yield _precision(facts.leaving, show)
    yield from changes.tables(facts, show)
    yield _urls("extensions", facts.leaving.extensions, show)
    yield _urls("identifier_systems", facts.leaving.identifier_systems, show)


def _identifying_rows(facts: ReportFacts, show: Disclosure) -> Iterator[tuple[str, list[Value]]]:
    seen: set[tuple[str, str]] = set()
    found = [*facts.leaving.paths.items(), *facts.leaving.undefined.items()]
    for path, at in sorted(found, key=lambda one: (one[0], one[1].kind)):
        code = code_of_path(facts, path, at)
        shown = show.path(path, at.patients)
        if code is None or (shown, at.kind) in seen:
            continue
        seen.add((shown, at.kind))
        row: list[Value] = [
            shown,
            kind_word(at.kind),
            _before(facts, path, show),
            show.count(at.patients) if at.patients else "@of-nobody",
            _original(facts, at, show),
            f"@{FINDINGS[code].level}",
        ]
        yield code, row


def _original(facts: ReportFacts, at: Path, show: Disclosure) -> Value:
    """Return the patients with an original value at a path; ``None`` if that was not compared."""
    if at.original:
        return show.count(at.original)
    if at.original_nobody:
        return "@of-nobody"
    return NONE if facts.imported is not None and at.compared and at.kind != "undefined" else None


def _before(facts: ReportFacts, path: str, show: Disclosure) -> Value:
    """Return the patients with a path at the import; ``None`` for tables, which have other paths."""
    if facts.imported is None or facts.leaving.tables:
        return None
    then = facts.imported.paths.get(path)
    if then is None:
        return NONE
    return "@of-nobody" if then.nobody and not then.patients else show.before(then.patients)


def _facts(facts: ReportFacts, show: Disclosure) -> Iterator[Fact]:
    rules = facts.rules
    if rules is not None:
        yield fact("rules_file", rules.name)
        yield fact("rules_sha256", rules.sha256)
    else:
        yield fact("rules_file", "@services-own-rules" if facts.step_with("pseudonymizer") else "@no-rules")
    if facts.kept:
        yield fact("kept_identifiers", ", ".join(facts.kept)[:300])
    yield fact("above_89", show.count(facts.leaving.above_89))
    shift = facts.leaving.shift
    if shift is not None:
        partly = any(dates.raw for dates in facts.leaving.dates.values())
        word = {"none": "@not-shifted", "one": "@one-for-all", "own": "@by-patient"}[shift]
        yield fact("date_shift", "@shifted-partly" if partly and shift != "none" else word)


def _ids(values: Values, show: Disclosure) -> Table:
    return table("ids", ([f"@ids-{kind}", show.count(values.get(kind, 0))] for kind in ID_KINDS))


def _precision(measured: Measured, show: Disclosure) -> Table:
    rows: list[list[Value]] = [
        [show.path(path), *(show.count(dates.precision.get(one, 0)) for one in PRECISIONS)]
        for path, dates in sorted(measured.dates.items())
        if dates.patients >= show.k
    ]
    return table("date_precision", rows, withheld=len(rows) < len(measured.dates))


def _urls(name: str, values: Values, show: Disclosure) -> Table:
    """Return the patients by the URL of an extension, or by a system."""
    shown = {value: n for value, n in values.items() if show.text(value, n) is not None}
    rows = [(value, show.count(n)) for value, n in sorted(shown.items())]
    return table(name, rows, withheld=len(shown) < len(values))
