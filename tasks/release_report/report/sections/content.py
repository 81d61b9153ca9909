"""Sections 9 to 12: completeness, content, time, references: what a researcher will find in the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from tasks.release_report.measure.measured import Codes, Dates, Values
from tasks.release_report.measure.numbers import TEXT_ONLY, is_text_only
from tasks.release_report.publication import Count, over_time, span
from tasks.release_report.report.completeness import FILLED, attributes
from tasks.release_report.report.disclosure import Disclosure
from tasks.release_report.report.document import Table, Value
from tasks.release_report.report.facts import ReportFacts
from tasks.release_report.report.findings import TECHNICAL
from tasks.release_report.report.outline import Parts, fact, table

TOP: Final = 8
"""Codes of an element that are shown (section 10)."""
MOST_TYPES: Final = 8
MOST_PERIODS: Final = 60
_NO_TIMES: Final = TECHNICAL | {"Patient"}
"""Types whose dates are no times of what happened to a patient."""


def completeness(facts: ReportFacts, show: Disclosure) -> Parts:
    """Yield section 9: per attribute of the query, before and after."""
    found = [*attributes(facts)]
    if not found:
        yield "no-attributes"
        return
    rows: dict[bool, list[list[Value]]] = {True: [], False: []}
    for one in found:
        rows[one.state == FILLED].append([
            one.group,
            one.ref,
            "@required" if one.required else "@optional",
            None if one.before is None else _whose(one.before, show.before(one.before, one.after), nobodys=one.nobodys),
            _whose(one.after, show.count(one.after), nobodys=one.nobodys),
            one.state,
        ])  # fmt: skip
    if not rows[False]:
        yield "all-complete"
    yield table("incomplete", rows[False])
    yield table("complete", rows[True])


def _whose(number: int, said: Count, *, nobodys: bool) -> Value:
    """Patients; of what is nobody's that there is some."""
    return "@of-nobody" if nobodys and number else said


def content(facts: ReportFacts, show: Disclosure) -> Parts:
    """Yield section 10: codes, systems, numbers, statuses, multiplicity; texts of at least ``k`` patients (R7)."""
    tables = [*_codes(facts, show), *_numbers(facts, show), *_statuses(facts, show), *_multiplicity(facts, show)]
    if facts.leaving.tables:
        yield "not-of-tables"
    elif not any(one.rows for one in tables):
        yield "no-content"
    yield from tables


def _codes(facts: ReportFacts, show: Disclosure) -> Iterator[Table]:
    rows: list[list[Value]] = []
    systems: list[list[Value]] = []
    withheld = some_systems = False
    # What is said of resources themselves comes last: of whom it is nobody asks for.
    ranked = sorted(facts.leaving.codes.items(), key=lambda one: (".meta." in one[0], -one[1].patients // 5, one[0]))
    for path, codes in ranked:
        if codes.patients < show.k:
            withheld = True
            continue
        shared = show.shared(codes.codes)
        withheld = withheld or len(shared) < len(codes.codes)
        for code, patients in list(shared.items())[:TOP]:
            system, _, value = code.rpartition("|")
            share = show.share(patients, code)
            rows.append(
                [show.path(path), value, _display(codes, code, show), system, show.coded(patients, code), share]
            )
        known = show.shared(codes.systems)
        some_systems = some_systems or len(known) < len(codes.systems)
        systems += [[show.path(path), system or "@no-system", show.coded(n, system)] for system, n in known.items()]
        if codes.text_only:
            systems.append([show.path(path), TEXT_ONLY, show.count(codes.text_only)])
    yield table("codes", rows, withheld=withheld)
    yield table("systems", systems, withheld=withheld or some_systems)


def _display(codes: Codes, code: str, show: Disclosure) -> str | None:
    """Return the text beside a code if at least ``k`` patients have this spelling."""
    display = codes.displays.get(code)
    return show.text(display, codes.display_patients.get(code, 0)) if display else None


def _numbers(facts: ReportFacts, show: Disclosure) -> Iterator[Table]:
    rows: list[list[Value]] = []
    withheld = False
    for path, by_code in sorted(facts.leaving.numbers.items()):
        codes = show.shared({code: numbers.patients for code, numbers in by_code.items()})
        withheld = withheld or len(codes) < len(by_code)
        for code in list(codes)[: TOP * 2]:
            numbers = by_code[code]
            units = ", ".join(unit or "–" for unit in show.shared(numbers.units))
            quarter = show.quartiles(numbers.quartiles, numbers.patients) or (None, None, None)
            thing = TEXT_ONLY if is_text_only(code) else code
            rows.append([show.path(path), thing, units, *quarter, show.coded(numbers.patients, code)])
    yield table("numbers", rows, withheld=withheld)


def _statuses(facts: ReportFacts, show: Disclosure) -> Iterator[Table]:
    by_path: dict[str, dict[str, int]] = {}
    for status, patients in facts.leaving.statuses.items():
        path, _, value = status.partition("|")
        by_path.setdefault(path, {})[value] = patients
    shown = {path: show.shared(values) for path, values in sorted(by_path.items())}
    rows = [
        (show.path(path), value, show.coded(n, value)) for path, known in shown.items() for value, n in known.items()
    ]
    withheld = any(len(known) < len(by_path[path]) for path, known in shown.items())
    yield table("statuses", rows, withheld=withheld)


def _multiplicity(facts: ReportFacts, show: Disclosure) -> Iterator[Table]:
    rows: list[list[Value]] = []
    # R6: the recipient's copy has no figure per patient.
    for name, values in sorted(facts.leaving.multiplicity.items()) if not show.recipient else ():
        of = facts.leaving.types.get(name)
        quarter = show.quartiles(values, of.patients if of is not None else 0)
        if quarter is not None:
            rows.append([show.type(name), *quarter])
    yield table("multiplicity", rows)


def time(facts: ReportFacts, show: Disclosure) -> Parts:
    """Yield section 11: patients by type, a year, or a quarter or a month; alarms are among the findings.

    A type is in one table only: its quarters beside its years would tell the sum of both more exactly than one of them.
    Dates of a Patient are left out: a birth year is no time of a disease, and section 8 has them; so are those of
    technical types, which say when the data were extracted.
    """
    by_type: dict[str, Dates] = {}
    for path, dates in sorted(facts.leaving.dates.items()):
        name = path.partition(".")[0]
        if (
            name not in _NO_TIMES
            and dates.patients >= show.k
            and dates.patients > getattr(by_type.get(name), "patients", 0)
        ):
            by_type[name] = dates
    chosen = dict(sorted(by_type.items(), key=lambda one: (-(one[1].patients // 5), one[0]))[:MOST_TYPES])
    grain, fine = _finely(chosen, show)
    columns = {
        name: {at: show.coded(n, at) for at, n in sorted(show.cells(periods).numbers.items())}
        for name, periods in fine.items()
    }
    tables = [_over_time(grain, columns, show)]
    withheld = False
    columns = {}
    for name in [name for name in chosen if name not in fine]:
        years = chosen[name].years
        periods, left_out = over_time(years, show.k)
        # Where each patient has one date they are disjoint cells.
        numbers = show.cells(years).numbers
        columns[name] = {year: show.count(numbers[year]) for year in periods if year in numbers}
        withheld = withheld or left_out or len(columns[name]) < len(periods)
    tables.append(_over_time("year", columns, show, withheld=withheld))
    tables = [one for one in tables if one.rows or one.withheld]
    shifted = bool(facts.leaving.date_shifts) and set(facts.leaving.date_shifts) != {0}
    partly = any(dates.raw for dates in facts.leaving.dates.values())
    word = "dates-shifted-partly" if partly else "dates-shifted"
    if shifted:
        yield word
    if not tables:
        yield "no-dates"
    yield from tables


def _finely(chosen: Mapping[str, Dates], show: Disclosure) -> tuple[str, dict[str, Values]]:
    """R8: "month" or "quarter", with the types that may be said by it; the one that more types may be said by.

    All have the same first and last one: the table has no cell without a number, and none tells that there is nobody.
    Types with dates that are a year and no more are said by year.
    """
    exact = {name: dates for name, dates in chosen.items() if not dates.precision.get("year")}
    found: list[tuple[str, dict[str, Values]]] = []
    for grain in ("month", "quarter"):
        by_type = {name: dates.months if grain == "month" else dates.quarters for name, dates in exact.items()}
        spans = {name: span(periods, show.k, rounded=show.recipient) for name, periods in by_type.items()}
        first = next((one for one in spans.values() if one is not None), None)
        found.append((grain, {name: by_type[name] for name, one in spans.items() if one is not None and one == first}))
    return max(found, key=lambda one: len(one[1]))


def _over_time(
    grain: str, columns: Mapping[str, Mapping[str, Count]], show: Disclosure, *, withheld: bool = False
) -> Table:
    periods = sorted({period for column in columns.values() for period in column})[-MOST_PERIODS:]
    rows = [(period, *(column.get(period) for column in columns.values())) for period in periods]
    return table("over_time", rows, withheld=withheld, columns=(grain, *map(show.type, columns)))


def _of_whom(number: int, patients: int, show: Disclosure) -> Value:
    return _whose(number, show.count(patients), nobodys=not patients)


def references(facts: ReportFacts, show: Disclosure) -> Parts:
    """Yield section 12: patients only. Most resources refer to their patient once, so that the number of references
    would tell that of the resources more exactly than R1 allows."""
    found, ids = facts.leaving.references, facts.leaving.ids
    if facts.leaving.tables:
        yield "no-references-in-tables"
        return
    if not show.enough:
        yield "too-few"
        return
    if not found.dangling and not found.hosts:
        yield "all-inside"
    yield fact("patients_inside", _of_whom(found.inside, found.inside_patients, show))
    yield fact("patients_dangling", _of_whom(found.dangling, found.dangling_patients, show))
    yield fact("patients_duplicates", _of_whom(ids.duplicates, ids.duplicate_patients, show))
    shown = {host: n for host, n in found.hosts.items() if show.text(host, n) is not None}
    rows = [(host, show.count(n)) for host, n in sorted(shown.items())]
    yield table("hosts", rows, withheld=len(shown) < len(found.hosts))
