"""The rules of publication (document 5, R1 to R11), and that no small number can be derived from their output.

A reader is taken to know the number of all patients, which categories there are, and how these functions work: she
thinks of all worlds, and those that look the same to her must not agree on a number from 1 to k - 1.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.release_report.publication import (
    ALL,
    NONE,
    SOME,
    Count,
    cells,
    count,
    count_of_text,
    enough,
    everybody,
    flow,
    over_time,
    quartiles,
    recipients_k,
    share,
    span,
    technical,
    text,
    texts,
    without_numbers,
)
from tasks.release_report.publication_counts import by_type, parted


def fewer(k: int) -> Count:
    return Count(word="fewer", number=k)


def about(number: int) -> Count:
    return Count(word="about", number=number)


def all_but(k: int) -> Count:
    return Count(word="all_but_fewer", number=k)


def revealed_numbers(worlds: Iterable[tuple[Hashable, tuple[int, ...]]], k: int) -> Iterator[tuple[Hashable, int]]:
    """Yield each appearance with the numbers of 1 to k - 1 on which all worlds of that appearance agree."""
    alike: defaultdict[Hashable, list[tuple[int, ...]]] = defaultdict(list)
    for looks, numbers in worlds:
        alike[looks].append(numbers)
    for looks, same in alike.items():
        for place, values in enumerate(map(set, zip(*same, strict=True))):
            if len(values) == 1 and 0 < next(iter(values)) < k:
                yield looks, place


@pytest.mark.parametrize(("number", "of", "said"), [
    (0, 20, NONE), (1, 20, fewer(5)), (4, 20, fewer(5)), (5, 20, about(5)), (7, 20, about(5)), (8, 20, about(10)),
    (15, 20, about(15)), (16, 20, all_but(5)), (19, 20, all_but(5)), (20, 20, ALL), (7, None, about(5)),
    (5, 6, SOME), (1, 6, SOME), (6, 6, ALL), (3, 3, fewer(5)), (1, 3, fewer(5)), (0, 3, NONE),
])  # fmt: skip
def test_r3_a_number_and_its_complement_are_bands(number: int, of: int | None, said: Count) -> None:
    assert count(number, 5, of=of) == said


@pytest.mark.parametrize("k", [3, 4, 5, 6, 7, 11, 12])
def test_r3_neither_a_count_nor_its_complement_is_told(k: int) -> None:
    for total in range(k, 40):
        assert not list(revealed_numbers(((count(n, k, of=total), (n, total - n)) for n in range(total + 1)), k))
    by_word: defaultdict[Count, list[int]] = defaultdict(list)
    for n in range(1, 60):
        by_word[count(n, k)].append(n)
    assert all(len(numbers) > 1 for said, numbers in by_word.items() if numbers[-1] < 55)
    assert all(said.number is not None and said.number >= k for said in by_word)


def worlds_of(total: int, categories: int) -> Iterator[tuple[int, ...]]:
    if categories == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for others in worlds_of(total - first, categories - 1):
            yield (first, *others)


def looks_of(world: tuple[int, ...], k: int) -> Hashable:
    said = cells({str(place): number for place, number in enumerate(world)}, k)
    return tuple(sorted((name, str(one)) for name, one in said.shown.items())), said.other


def sums_of(world: tuple[int, ...]) -> tuple[int, ...]:
    sizes = range(1, len(world))
    return tuple(sum(some) for size in sizes for some in itertools.combinations(world, size))


@pytest.mark.slow
@pytest.mark.parametrize("k", [3, 4, 5, 6, 7, 11])
@pytest.mark.parametrize(("categories", "most"), [(2, 40), (3, 30), (4, 24)])
def test_r4_no_cell_and_no_sum_of_cells_is_told_to_one_who_knows_all_categories(
    k: int, categories: int, most: int
) -> None:
    for total in range(k, most):
        worlds = ((looks_of(world, k), sums_of(world)) for world in worlds_of(total, categories))
        assert not list(revealed_numbers(worlds, k))


def test_r4_small_cells_are_put_together_until_they_are_k() -> None:
    assert cells({"a": 40, "b": 12, "c": 3}, 5) == cells({"a": 40, "b": 12, "d": 3}, 5)
    said = cells({"a": 40, "b": 12, "c": 3}, 5)
    assert said.shown == {"a": about(40)}
    assert said.other == about(15)
    assert cells({"a": 20, "b": 3}, 5).other == ALL
    assert cells({"a": 20, "b": 0}, 5).shown == {"a": ALL, "b": NONE}
    assert cells({"a": 20, "b": 8}, 5).other is None
    assert cells({"a": 2, "b": 1}, 5).other == fewer(5)
    assert cells({"a": 40, **{str(at): 3 for at in range(9)}}, 5).shown == {"a": about(40)}
    assert cells({}, 5) == cells({}, 3)


def test_r5_shares_are_not_finer_than_five_patients() -> None:
    assert share(about(50), 1000) == 5
    assert share(about(125), 1000) == 12
    assert share(about(15), 60) == 20  # in steps of 10
    assert share(about(195), 200) == 95
    assert share(about(10), 15) is None
    assert share(fewer(5), 1000) is None
    assert (share(NONE, 10), share(ALL, 10)) == (0, 100)
    for of in (*range(1, 120, 7), 499, 500):
        steps = {shown for n in range(of + 1) if (shown := share(count(n, 5, of=of), of)) is not None}
        assert all((b - a) * of >= 500 for a, b in itertools.pairwise(sorted(steps)))


def test_r6_a_figure_around_all_patients_differs_by_none_or_by_k() -> None:
    assert flow(100, [("asked", 120), ("cohort", 117), ("consent", 103)], 5) == {
        "asked": about(120), "cohort": None, "consent": None,
    }  # fmt: skip
    assert flow(100, [("cohort", 100), ("consent", 105)], 5) == {"cohort": ALL, "consent": about(105)}
    for k in (3, 5, 11):
        for total in range(k, 30):
            worlds = (
                (str(flow(total, [("asked", asked), ("cohort", cohort)], k)), (asked - cohort, cohort - total))
                for cohort in range(total, total + 2 * k)
                for asked in range(cohort, cohort + 2 * k)
            )
            assert not list(revealed_numbers(worlds, k))


def test_r6_all_patients_are_exact_in_house_only() -> None:
    assert everybody(43, 5, recipient=False) == 43
    assert everybody(43, 11, recipient=True) == about(45)
    assert everybody(7, 11, recipient=True) == fewer(11)
    assert everybody(4, 5, recipient=False) == fewer(5)
    assert (recipients_k(5), recipients_k(20)) == (11, 20)


def totals_by_looks(worlds: Iterable[tuple[Hashable, int]]) -> Iterator[tuple[Hashable, set[int]]]:
    """Return the possible totals of patients by appearance."""
    alike: defaultdict[Hashable, set[int]] = defaultdict(set)
    for looks, total in worlds:
        alike[looks].add(total)
    return iter(alike.items())


@pytest.mark.parametrize("k", [11, 12, 14])
def test_r6_no_count_and_no_related_figure_reveals_the_rounded_number_of_patients(k: int) -> None:
    totals = [total for total in range(k, 63) if enough(total, k, rounded=True)]
    counts = (((total_, count(n, k, of=n_all, rounded=True)), n_all) for n_all in totals for n in range(n_all + 1)
              for total_ in [count(n_all, k)])  # fmt: skip
    assert all(len(found) > 1 for _, found in totals_by_looks(counts))
    figures = (
        (str((count(total, k), flow(total, [("cohort", total + more)], k, rounded=True))), total)
        for total in totals for more in range(4 * k)
    )  # fmt: skip
    assert all(len(found) > 1 for _, found in totals_by_looks(figures))


@pytest.mark.parametrize(("k", "categories", "most"), [(11, 2, 63), (14, 2, 63), (11, 3, 43)])
def test_r6_nor_do_cells_that_add_up_to_it(k: int, categories: int, most: int) -> None:
    """About 35 patients, about 25 and about 11 of whom have something each, would be 34."""

    def appearance(world: tuple[int, ...]) -> Hashable:
        said = cells({str(place): number for place, number in enumerate(world)}, k, rounded=True)
        return count(sum(world), k), tuple(sorted((name, str(one)) for name, one in said.shown.items())), said.other

    totals = [total for total in range(k, most) if enough(total, k, rounded=True)]
    worlds = ((appearance(world), total) for total in totals for world in worlds_of(total, categories))
    assert all(len(found) > 1 for _, found in totals_by_looks(worlds))
    assert not cells({"a": 23, "b": 11}, 11, rounded=True).shown
    assert cells({"a": 33, "b": 17}, 11, rounded=True).shown == {"a": about(35), "b": about(15)}
    assert cells({"a": 32, "b": 17}, 11, rounded=True).shown == {"a": about(35), "b": about(15)}  # of 50


def test_r7_a_text_is_said_where_k_patients_share_it() -> None:
    assert text("I10", 5, 5) == "I10"
    assert text("I10", 4, 5) is None
    assert text("two\nlines", 50, 5) is None
    assert text("x" * 1000, 50, 5) is None
    assert list(texts({"b": 8, "a": 12, "z": 4, "c": 8}, 5)) == ["a", "b", "c"]


def test_r8_quartiles_have_two_digits_and_4k_patients() -> None:
    assert quartiles((1.234, 56.78, 9012.3), 20, 5) == (1.2, 57.0, 9000.0)
    assert quartiles((1.0, 2.0, 3.0), 19, 5) is None
    assert quartiles(None, 100, 5) is None


def test_r8_years_of_few_are_left_out() -> None:
    assert over_time({"2021": 5, "2020": 9}, 5) == ({"2020": 9, "2021": 5}, False)
    assert over_time({"2020": 9, "1903": 1}, 5) == ({"2020": 9}, True)


def every(first: int, last: int, *, quarters: bool = False) -> list[str]:
    """Return all months, or quarters, of these years."""
    names = [f"Q{n}" for n in range(1, 5)] if quarters else [f"{n:02}" for n in range(1, 13)]
    return [f"{year}-{name}" for year in range(first, last + 1) for name in names]


@pytest.mark.parametrize(("periods", "expected"), [
    ({"2020-Q4": 10, "2021-Q1": 99, "2021-Q2": 10}, ("2020-Q4", "2021-Q2")),
    ({"2020-11": 10, "2021-01": 10, "2020-12": 10}, ("2020-11", "2021-01")),
    ({"2020-Q2": 10}, ("2020-Q2", "2020-Q2")),
    (dict.fromkeys(every(2019, 2021, quarters=True), 10), ("2019-Q1", "2021-Q4")),
    (dict.fromkeys(every(2019, 2021), 10), ("2019-01", "2021-12")),
    ({"2020-Q4": 10, "2021-Q1": 9, "2021-Q2": 10}, None),  # k is not enough
    ({"2020-Q4": 10, "2021-Q2": 10}, None),  # nobody between
    ({"2020-12": 10, "2021-02": 10}, None),
    (dict.fromkeys([*every(2019, 2021, quarters=True), "2022-Q1"], 10), None),
    (dict.fromkeys([*every(2019, 2021), "2022-01"], 10), None),
    ({"2020-13": 10, "2020-12": 10}, None),
    ({"2020-00": 10}, None),
    ({}, None),
])  # fmt: skip
def test_r8_dates_are_by_quarter_or_month_only_with_2k_in_each_and_no_gap(
    periods: dict[str, int], expected: tuple[str, str] | None
) -> None:
    assert span(periods, 5) == expected


@given(
    before=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    k=st.sampled_from((3, 5, 11)),
    dice=st.randoms(use_true_random=False),
)
def test_r8_that_quarters_are_said_now_tells_of_no_quarter_that_it_had_few_before(
    before: list[int], k: int, dice: random.Random
) -> None:
    """Two reports that differ by one patient, and by up to k that the reader knows of: promise 2."""
    names = every(2020, 2021, quarters=True)[: len(before)]
    after = list(before)
    for _ in range(dice.randint(1, k)):
        after[dice.randrange(len(after))] += 1

    def shown(numbers: list[int]) -> bool:
        return span({name: n for name, n in zip(names, numbers, strict=True) if n}, k) is not None

    if shown(after) and all(after) and not shown(before):
        assert min(before) >= k


def types_of(**types: tuple[int, int]) -> dict[str, tuple[int, int, int]]:
    """Resources of patients, and patients, by type; all are somebody's."""
    return {name: (*of, 0) for name, of in types.items()}


def test_r1_types_of_few_patients_are_put_together_with_the_smallest_published_one() -> None:
    of_40 = types_of(Patient=(40, 40), Condition=(93, 30), Consent=(6, 6), Device=(2, 2))
    (shown,), other = by_type([of_40], 5, of=[40])
    assert sorted(shown) == ["Condition", "Patient"]
    assert shown["Condition"].resources == 95
    assert other is not None
    assert (other[0].resources, other[0].patients) == (10, SOME)
    (shown,), other = by_type([{"Patient": (40, 40, 0), "Practitioner": (0, 0, 3)}], 5, of=[40])
    assert other is None
    assert (shown["Practitioner"].resources, shown["Practitioner"].nobody) == (5, 5)
    # What joins them has k patients at the step where they are few, and not at another one only.
    (after, _), other = by_type([types_of(Patient=(40, 40), Device=(1, 1)), of_40], 5, of=[40, 40])
    assert sorted(after) == ["Condition", "Consent"]
    assert other is not None
    assert [(one.resources, one.patients) for one in other] == [(45, ALL), (45, ALL)]
    # What has few patients at one step is not told at the other.
    (after, before), other = by_type([of_40 | types_of(Condition=(3, 3)), of_40], 5, of=[40, 40])
    assert sorted(after) == sorted(before) == ["Patient"]
    assert [technical(number) for number in (0, 1, 7, 8)] == [0, 5, 5, 10]


def test_r1_resources_of_patients_and_of_nobody_add_up() -> None:
    ((shown,), _) = by_type([{"Patient": (20, 20, 0), "Observation": (17, 9, 8)}], 5, of=[20])
    assert (shown["Observation"].resources, shown["Observation"].nobody) == (25, 10)


def worlds_of_types(total: int, most: int, types: int, k: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the appearance of types with at least as many resources as patients, with the printed sum."""
    one = [(0, 0)] + [(resources, n) for n in range(1, total + 1) for resources in range(n, most)]
    for world in itertools.product(one, repeat=types):
        column = types_of(Patient=(total, total), **{f"t{at}": of for at, of in enumerate(world) if of[0]})
        (shown,), other = by_type([column], k, of=[total])
        printed = sum(of.resources for of in (*shown.values(), *(other or ())))
        yield str((shown, other, printed)), tuple(n for _, patients in world for n in (patients, total - patients))


@pytest.mark.parametrize(("k", "totals", "types"), [
    (3, range(3, 8), 2), (5, range(5, 8), 2), (5, range(8, 30), 1), (7, (8, 13), 1), (11, (11, 12, 23, 33), 1),
])  # fmt: skip
def test_r1_resources_tell_neither_few_patients_of_a_type_nor_few_without_it(
    k: int, totals: Iterable[int], types: int
) -> None:
    """18 patients, 14 of whom have one Condition, and 32 resources: rounding alone would tell the 4 who have none."""
    for total in totals:
        assert not list(revealed_numbers(worlds_of_types(total, total + 6, types, k), k))


def worlds_of_steps(total: int, imported: int, k: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the same of one type, of which some may have been lost since the import."""
    for patients, before in itertools.product(range(total + 1), range(imported + 1)):
        for resources in range(patients, total + 3) if patients else (0,):
            for then in range(max(before, resources), imported + 3) if before >= patients and before else ():
                columns = [{"t": (resources, patients, 0)}, {"t": (then, before, 0)}]
                yield str(by_type(columns, k, of=[total, imported])), (patients, total - patients)


@pytest.mark.parametrize(("k", "total", "imported"), [(3, 7, 10), (5, 11, 16)])
def test_r1_nor_do_resources_and_patients_of_the_step_before(k: int, total: int, imported: int) -> None:
    assert not list(revealed_numbers(worlds_of_steps(total, imported, k), k))


def test_r6_the_recipients_copy_rounds_resources_and_joins_small_types() -> None:
    numbers = (0, 1, 49, 74, 75, 1_234, 98_765)
    assert [technical(number, recipient=True) for number in numbers] == [0, 50, 50, 50, 100, 1_200, 99_000]
    column = types_of(Patient=(400, 400), Consent=(45, 45), Condition=(930, 300)) | {"Practitioner": (0, 0, 3)}
    ((shown,), other) = by_type([column], 11, of=[400], recipient=True)
    assert {name: of.resources for name, of in shown.items()} == {"Condition": 950, "Patient": 400}
    assert other is not None
    assert other[0].resources == 50


def test_r1_a_printed_total_is_divided_in_proportion_and_its_parts_add_up() -> None:
    assert parted(40, [32]) == [40]
    assert parted(35, [17, 16]) == [20, 15]
    assert parted(100, [1, 1, 1]) == [30, 35, 35]
    assert parted(1_250, [3, 1], recipient=True) == [950, 300]
    assert parted(5, [1, 1]) == [5, 5]
    assert parted(0, [0]) == [0]
    assert all(sum(parted(total, [5, 3, 9])) == total for total in range(20, 200, 5))


def test_r11_all_is_said_of_a_code_that_was_asked_for_or_of_many_patients() -> None:
    assert count_of_text(12, 5, of=12) == SOME
    assert count_of_text(11, 5, of=12) == SOME
    assert count_of_text(12, 5, of=12, asked=True) == ALL
    assert count_of_text(20, 5, of=20) == ALL
    assert count_of_text(7, 5, of=20) == about(5)


def test_numbers_in_a_sentence_of_a_step_are_left_out() -> None:
    said = "the server counts 12 patients, the files hold 1,011 Bundles (R4, file-1.ndjson, 3.5)"
    assert without_numbers(said) == "the server counts … patients, the files hold … Bundles (R4, file-1.ndjson, …)"
    assert without_numbers("3 resources had no id") == "… resources had no id"
