"""Section 11 (document 5, R8): by quarter or month only where every cell has enough, else by year."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tasks.release_report.measure.measured import Dates, Measured
from tasks.release_report.publication import Count
from tasks.release_report.report.build import build
from tasks.release_report.report.document import Value
from tests.tasks.release_report.report.population import dates, facts, population
from tests.tasks.release_report.report.reporting import section_of

SIZE = 60
WHOLE = ["2020-02"] * 30 + ["2020-05"] * 10 + ["2020-09"] * 20
"""Enough in each quarter, and not in each month."""


Found = dict[str, tuple[tuple[str, ...], list[Any]]]


def word_and_number(cell: Value) -> tuple[str, int | None] | None:
    return (cell.word, cell.number) if isinstance(cell, Count) else None


def tables(by_path: Mapping[str, Dates], *, recipient: bool = False, size: int = SIZE) -> Found:
    """Return the columns and rows of the tables, by their periods."""
    given = facts(population(random.Random(1), SIZE), leaving=Measured(patients=size, dates=by_path))
    section = section_of(build(given, k=5, recipient=recipient), 11)
    found = {}
    for one in section.tables:
        rows = [(row[0], *map(word_and_number, row[1:])) for row in one.rows]
        found[one.columns[0]] = (one.columns[1:], rows)
    return found


def test_patients_are_told_by_quarter_where_each_has_2k() -> None:
    assert tables({"Encounter.period.start": dates(WHOLE)}) == {
        "quarter": (
            ("Encounter",),
            [("2020-Q1", ("about", 30)), ("2020-Q2", ("about", 10)), ("2020-Q3", ("about", 20))],
        )
    }


def test_the_recipient_needs_more_for_a_quarter() -> None:
    assert list(tables({"Encounter.period.start": dates(WHOLE)}, recipient=True)) == ["year"]


def test_one_quarter_of_less_makes_it_years() -> None:
    for odd in (["2020-Q4"] * 9, ["2021-03"] * 20, ["2024-01"] * 20):
        months = [*WHOLE, *(month.replace("Q4", "11") for month in odd)]
        assert list(tables({"Encounter.period.start": dates(months)})) == ["year"]


def test_months_are_told_where_each_has_2k() -> None:
    found = tables({"Encounter.period.start": dates(["2020-12"] * 30 + ["2021-01"] * 30)})
    assert [row[0] for row in found["month"][1]] == ["2020-12", "2021-01"]


def test_a_type_is_in_one_table_only_and_none_has_a_cell_without_a_number() -> None:
    found = tables({
        "Encounter.period.start": dates(WHOLE),
        "Condition.recordedDate": dates(WHOLE),
        "Procedure.performedDateTime": dates(WHOLE[:40]),  # another span
        "Observation.effectiveDateTime": dates([*WHOLE, "1999-01"]),
    })  # fmt: skip
    assert found["quarter"][0] == ("Condition", "Encounter")
    assert found["year"][0] == ("Observation", "Procedure")
    assert all(cell is not None for row in found["quarter"][1] for cell in row)
    assert [row[0] for row in found["year"][1]] == ["2020"]


def test_where_some_dates_are_years_all_are() -> None:
    some = dates(WHOLE)
    with_years = Dates(some.patients + 1, {"2020": 61}, some.quarters, some.months, {"day": 60, "year": 1})
    assert list(tables({"Encounter.period.start": with_years})) == ["year"]


def test_all_of_one_quarter_is_said_as_of_a_code() -> None:
    [row] = tables({"Encounter.period.start": dates(["2020-02", "2020-03"] * 5)}, size=10)["quarter"][1]
    assert row == ("2020-Q1", ("some", None))
    [row] = tables({"Encounter.period.start": dates(["2020-02"] * 60)})["month"][1]
    assert row == ("2020-02", ("all", None))


def test_the_extraction_time_is_no_time_of_the_data_and_omitted_years_are_stated() -> None:
    recorded = dates(["2026-11"] * SIZE)
    assert tables({"Provenance.recorded": recorded}) == {}
    each = dates([f"{1960 + number}-01" for number in range(SIZE)])
    given = facts(population(random.Random(1), SIZE))
    dated = {"Provenance.recorded": recorded, "Condition.recordedDate": each}
    given = replace(given, leaving=Measured(patients=SIZE, dates=dated))
    section = section_of(build(given, k=5), 11)
    assert section.said == ()
    assert [(one.columns, one.rows, one.withheld) for one in section.tables] == [(("year", "Condition"), (), True)]
