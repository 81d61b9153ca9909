"""``banded``: one function for all numbers of patients."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.release_report.numbers import Count, Tally, banded, counted

_k = st.integers(3, 20)


@pytest.mark.parametrize(
    ("patients", "k", "of", "expected"),
    [
        (0, 5, None, Count(word="none")),
        (0, 5, 0, Count(word="none")),
        (1, 5, None, Count(word="fewer", number=5)),
        (4, 5, 4, Count(word="fewer", number=5)),
        (5, 5, 5, Count(word="all")),
        (5, 5, 9, Count(word="about", number=5)),
        (7, 5, None, Count(word="about", number=5)),
        (8, 5, None, Count(word="about", number=10)),
        (7, 7, None, Count(word="about", number=7)),
        (1202, 5, None, Count(word="about", number=1200)),
    ],
)
def test_bands(patients: int, k: int, of: int | None, expected: Count) -> None:
    assert banded(patients, k, of) == expected


@given(patients=st.integers(0, 10**9), k=_k, of=st.none() | st.integers(0, 10**9))
def test_a_band_is_near_the_number_and_tells_no_small_one(patients: int, k: int, of: int | None) -> None:
    found = banded(patients, k, of)
    if patients == 0:
        assert found == Count(word="none")
    elif patients < k:
        assert found == Count(word="fewer", number=k)
    elif patients == of:
        assert found == Count(word="all")
    else:
        assert found.word == "about"
        assert found.number is not None
        assert found.number >= k
        assert abs(found.number - patients) <= max(2, k - patients)


@given(smaller=st.integers(1, 1000), larger=st.integers(1, 1000), k=_k)
def test_small_numbers_look_alike(smaller: int, larger: int, k: int) -> None:
    if max(smaller, larger) < k:
        assert banded(smaller, k) == banded(larger, k)


@pytest.mark.parametrize(
    ("tally", "expected"),
    [
        (Tally(5, False, 1204), Count(word="least", number=5, lines=1204)),
        (Tally(4, True, 90), Count(word="fewer", number=5)),
        (Tally(9, True, 9), Count(word="about", number=10)),
        (Tally(12, True, 12), Count(word="all")),
        (Tally(0, True, 3, 3), Count(word="nobody", lines=3)),
        (Tally(), Count(word="none")),
    ],
)
def test_a_tally_is_banded_or_says_k_or_more(tally: Tally, expected: Count) -> None:
    assert counted(tally, 5, of=12) == expected
