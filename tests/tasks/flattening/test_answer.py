"""Agreement of rows with the resources of a request (document 3 §5, "What must agree")."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.flattening.answer import Promise, RowAgreement, RowRule, RowsDifferError
from tests.peers.flattening import CONDITIONS, OBSERVATIONS, view

IDS = ("a", "b", "c")


def found(promise: Promise, *blocks: list[Any], column: int | None = 0) -> int:
    agreement = RowAgreement(RowRule(promise, column), IDS)
    for block in blocks:
        agreement.check_ids(block)
    return agreement.end()


def nested(clause: str) -> dict[str, Any]:
    below = {"column": [], "select": [{clause: "coding", "column": []}]}
    return OBSERVATIONS.definition | {"select": [*OBSERVATIONS.definition["select"], below]}


@pytest.mark.parametrize(
    ("definition", "promise"),
    [
        (OBSERVATIONS.definition, Promise.ONE),
        (CONDITIONS.definition, Promise.ANY),
        (nested("forEach"), Promise.ANY),
        (nested("forEachOrNull"), Promise.AT_LEAST_ONE),
        (OBSERVATIONS.definition | {"where": [{"path": "true"}]}, Promise.ANY),
    ],
)
def test_what_a_view_promises_follows_from_its_clauses(definition: dict[str, Any], promise: Promise) -> None:
    assert RowRule.of(dataclasses.replace(OBSERVATIONS, definition=definition)) == RowRule(promise, 0)


def test_ids_are_those_of_the_column_whose_path_is_id_in_the_first_clause() -> None:
    assert RowRule.of(view("g", "Patient", {"gender": "gender", "key": "id"})).column == 1
    assert RowRule.of(view("g", "Patient", {"gender": "gender"})).column is None
    each = {"select": [{"forEach": "contained", "column": [{"name": "id", "path": "id"}]}]}
    assert RowRule.of(dataclasses.replace(OBSERVATIONS, definition=each)).column is None


def test_rows_in_any_order_and_any_pieces_agree() -> None:
    assert found(Promise.ONE, ["c"], [], ["a", "b"]) == 3
    assert found(Promise.AT_LEAST_ONE, ["c", "a", "c"], ["b"]) == 3
    assert found(Promise.ANY, ["b", "b"]) == 1
    assert found(Promise.ANY) == 0


@pytest.mark.parametrize(
    ("promise", "rows", "what"),
    [
        (Promise.ONE, ["a", "b"], "1 missing"),
        (Promise.ONE, ["a", "b", "c", "c"], "1 too many"),
        (Promise.ONE, ["a", "b", "b"], "1 missing, 1 too many"),
        (Promise.ONE, ["a", "b", "c", "d", None], "2 of other resources"),
        (Promise.ONE, ["d", "a", "a"], "2 missing, 1 of other resources, 1 too many"),
        (Promise.AT_LEAST_ONE, ["a", "a", "b"], "1 missing"),
        (Promise.AT_LEAST_ONE, ["a", "b", "c", None], "1 of other resources"),
        (Promise.ANY, ["a", "A"], "1 of other resources"),
    ],
)
def test_what_does_not_agree_is_counted_and_not_named(promise: Promise, rows: list[Any], what: str) -> None:
    with pytest.raises(RowsDifferError) as caught:
        found(promise, rows)
    counted = str(caught.value).removeprefix("the rows do not agree with the 3 resources that were sent: ")
    assert counted == what


def test_a_resource_that_was_sent_twice_has_two_rows() -> None:
    twice = RowAgreement(RowRule(Promise.ONE, 0), ("a", "a", "b"))
    twice.check_ids(["a", "b", "a"])
    assert twice.end() == 3
    once = RowAgreement(RowRule(Promise.ONE, 0), ("a", "a", "b"))
    once.check_ids(["a", "b", "b"])
    with pytest.raises(RowsDifferError, match="1 missing, 1 too many"):
        once.end()


def test_rows_without_a_column_of_ids_are_counted() -> None:
    assert found(Promise.ONE, [None, None], [None], column=None) == 3
    assert found(Promise.ANY, [None], column=None) == 1
    for rows, what in ((2, "1 missing"), (4, "1 too many")):
        with pytest.raises(RowsDifferError, match=what):
            found(Promise.ONE, [None] * rows, column=None)


@given(st.lists(st.sampled_from("abcd"), max_size=6), st.sampled_from(Promise))
def test_it_agrees_when_the_multisets_do(rows: list[str], promise: Promise) -> None:
    counts = [rows.count(one) for one in IDS]
    right = "d" not in rows and {
        Promise.ONE: counts == [1, 1, 1], Promise.AT_LEAST_ONE: min(counts) >= 1, Promise.ANY: True,
    }[promise]  # fmt: skip
    try:
        assert found(promise, rows[:2], rows[2:]) == sum(count > 0 for count in counts)
        agrees = True
    except RowsDifferError:
        agrees = False
    assert agrees == right
