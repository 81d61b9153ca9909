"""FHIR dates as intervals of days."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.sandbox.extraction.dates import DayRange, age, days_of, join, subtract

DAYS = st.builds(lambda first, length: DayRange(first, first + length), st.integers(1, 60), st.integers(0, 20))


def days(first: str, last: str) -> DayRange:
    return DayRange(date.fromisoformat(first).toordinal(), date.fromisoformat(last).toordinal())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2024", days("2024-01-01", "2024-12-31")),
        ("2024-02", days("2024-02-01", "2024-02-29")),
        ("2024-02-29", days("2024-02-29", "2024-02-29")),
        ("2024-02-29T23:59:59.123-11:00", days("2024-02-29", "2024-02-29")),
        ({"start": "2024-03", "end": "2024-04-02"}, days("2024-03-01", "2024-04-02")),
        ({"event": ["2024-03-05", "2024-02"]}, days("2024-02-01", "2024-03-05")),
        ("2023-02-29", None),
        ("2024-13", None),
        ("0000", None),
        ("yesterday", None),
        ({}, None),
        ({"start": "2024-02-02", "end": "2024-02-01"}, None),
        (2024, None),
        (None, None),
    ],
)
def test_days_of(value: object, expected: DayRange | None) -> None:
    assert days_of(value) == expected


def test_an_open_period_goes_on_without_end() -> None:
    after = days_of({"start": "2024-02-01"})
    assert after is not None
    assert after.covers(days("2024-02-01", "9999-12-31"))
    before = days_of({"end": "2024-02-01"})
    assert before is not None
    assert before.covers(days("0001-01-01", "2024-02-01"))


@given(st.lists(DAYS, max_size=6), st.lists(DAYS, max_size=6))
def test_subtract_leaves_the_days_that_are_allowed_and_not_denied(
    allowed: list[DayRange], denied: list[DayRange]
) -> None:
    def whole(intervals: list[DayRange]) -> set[int]:
        return {day for item in intervals for day in range(item.first, item.last + 1)}

    left = subtract(allowed, denied)
    assert whole(left) == whole(allowed) - whole(denied)
    assert left == join(left)


@given(st.dates(date(1900, 1, 1), date(2000, 1, 1)), st.integers(0, 40_000))
def test_age_is_what_a_calendar_says(born: date, passed: int) -> None:
    today = born + timedelta(days=passed)
    years = age(born, today, "a")
    assert age(born, today, "wk") == passed // 7
    assert age(born, today, "mo") // 12 == years
    assert (born.year + years, born.month, born.day) <= (today.year, today.month, today.day)
    assert (born.year + years + 1, born.month, born.day) > (today.year, today.month, today.day)
