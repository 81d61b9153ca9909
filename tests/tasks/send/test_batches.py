"""Packing, and the transaction Bundle (document 3 §7: at most ``batch_size`` resources, 5 MiB, last wins)."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.send.batches import (
    MAX_BODY,
    MIN_BODY,
    Batch,
    Resolve,
    SendUnit,
    TransactionLimits,
    Transactions,
    UnitPart,
    pack,
)
from tasks.shared.fhir.bundle import Resource

TRANSACTIONS = Transactions("http://h")
ENVELOPE = TRANSACTIONS.envelope


def made(ordinal: int, size: int = 1, key: str | None = None, line: int = 1) -> Resource:
    return Resource(
        "Basic", key or f"r{ordinal}", f"Basic/{key or ordinal}", b"x" * size, "a.ndjson", line, None, ordinal
    )


def units(*sizes: int) -> list[SendUnit]:
    """Return one unit for each number: that many resources of one byte."""
    result, ordinal = [], 0
    for line, size in enumerate(sizes):
        result.append(SendUnit([made(ordinal + i, line=line) for i in range(size)], frozenset({f"line {line}"})))
        ordinal += size
    return result


def packed(given_ones: list[SendUnit], count: int, size: int = 10**6) -> list[Batch]:
    return list(pack(given_ones, TransactionLimits(count, size), TRANSACTIONS))


def ordinals(batch: Batch) -> list[int]:
    return [resource.ordinal for resource in batch.content.resources]


def body(resources: Sequence[Resource]) -> int:
    return ENVELOPE + sum(TRANSACTIONS.sizes(resources))


def test_a_line_with_thousands_of_resources_is_divided_at_batch_size() -> None:
    assert [len(ordinals(batch)) for batch in packed(units(1, 2501, 1), 1000)] == [1, 1000, 1000, 502]


def test_the_last_of_the_same_type_and_id_wins_within_a_transaction() -> None:
    unit = SendUnit([made(0, key="a"), made(1, key="b"), made(2, key="a")], frozenset())
    (batch,) = packed([unit], 10)
    assert ordinals(batch) == [1, 2]
    assert [resource.ordinal for resource in batch.collapsed] == [0]


@pytest.mark.slow
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), min_size=1, max_size=9), max_size=12),
    st.integers(1, 7),
    st.integers(ENVELOPE, 1500),
    st.booleans(),
)
def test_every_resource_goes_out_once_in_order_and_no_limit_is_exceeded(
    lines: list[list[tuple[int, int]]], count: int, size: int, told: bool
) -> None:
    given_ones, ordinal = [], 0
    for line, content in enumerate(lines):
        resources = []
        for length, name in content:
            resources.append(made(ordinal, length, key=f"k{name}", line=line))
            ordinal += 1
        raw = sum(len(resource.raw) for resource in resources)
        given_ones.append(SendUnit(resources, frozenset({str(line)}), raw if told else None))
    batches = packed(given_ones, count, size)
    last: dict[str, int] = {}
    for batch in batches:
        resources = list(batch.content.resources)
        assert len(resources) <= count
        assert len({resource.key for resource in resources}) == len(resources)
        assert len(resources) == 1 or body(resources) <= size
        assert {str(resource.line) for resource in resources} <= batch.lanes
        for resource in resources:  # the sequence of one resource's versions is kept
            assert last.get(resource.key, -1) < resource.ordinal
            last[resource.key] = resource.ordinal
    everything = [n for batch in batches for n in (*ordinals(batch), *(c.ordinal for c in batch.collapsed))]
    assert sorted(everything) == list(range(ordinal))
    for line, unit in enumerate(given_ones):
        fits = len(unit.resources) <= count and body(unit.resources) <= size
        holding = [batch for batch in batches if str(line) in batch.lanes]
        assert not fits or len(holding) == 1


def test_groups_stay_together_and_one_larger_than_the_limits_travels_alone() -> None:
    given_ones = units(2, 3, 9, 1, 1)
    batches = list(pack(given_ones, TransactionLimits(5), TRANSACTIONS, resolve=Resolve.ISOLATE, groups=True))
    assert [(len(batch.content.resources), batch.content.groups) for batch in batches] == [
        (5, [0, 2]),
        (9, [0]),
        (2, [0, 1]),
    ]
    assert {batch.resolve for batch in batches} == {Resolve.ISOLATE}


@given(st.integers(2, 30), st.sets(st.integers(1, 29)) | st.none())
def test_halving_ends_with_single_resources_and_divides_groups_last(count: int, borders: set[int] | None) -> None:
    groups = None if borders is None else sorted({0} | {border for border in borders if border < count})
    whole = UnitPart([made(n) for n in range(count)], groups)
    starts = set(range(count)) if groups is None else set(groups)
    stack, seen = [whole], []
    while stack:
        part = stack.pop()
        if len(part.resources) == 1:
            seen.append(part.resources[0].ordinal)
            continue
        left, right = part.halves()
        assert [*left.resources, *right.resources] == list(part.resources)
        assert left.resources
        assert right.resources
        if part.groups is not None and part.divisible():
            assert right.resources[0].ordinal in starts
        stack += [right, left]
    assert seen == list(range(count))


# The transaction

SENT = Transactions("https://fhir.example/base/fhir")


def put(kind: str, identifier: str, raw: bytes) -> Resource:
    return Resource(kind, identifier, f"{kind}/{identifier}", raw, "a.ndjson", 1, None, 0)


def test_every_entry_is_put_type_id_with_a_full_url_of_its_own() -> None:
    body = SENT.body([put("Patient", "p", b'{"resourceType":"Patient"}'), put("Group", "g", b"{}")])
    assert json.loads(body) == {
        "resourceType": "Bundle",
        "type": "transaction",
        "entry": [
            {
                "fullUrl": "https://fhir.example/base/fhir/Patient/p",
                "resource": {"resourceType": "Patient"},
                "request": {"method": "PUT", "url": "Patient/p"},
            },
            {
                "fullUrl": "https://fhir.example/base/fhir/Group/g",
                "resource": {},
                "request": {"method": "PUT", "url": "Group/g"},
            },
        ],
    }


ids = st.from_regex("[A-Za-z0-9.-]{1,64}", fullmatch=True)


@given(st.lists(st.tuples(st.sampled_from(["Patient", "Observation"]), ids, st.binary(max_size=50)), min_size=1))
def test_the_size_of_a_body_is_known_before_it_is_put(given_ones: list[tuple[str, str, bytes]]) -> None:
    resources = [put(kind, identifier, raw) for kind, identifier, raw in given_ones]
    planned = SENT.envelope + sum(SENT.sizes(resources))
    assert len(SENT.body(resources)) == planned - 1  # the first entry has no comma before it
    most = sum(len(resource.raw) + SENT.most_overhead for resource in resources)
    assert sum(SENT.sizes(resources)) <= most


def test_too_large_halves_the_limit_but_not_for_ever() -> None:
    limits = TransactionLimits(100)
    assert limits.max_bytes == MAX_BODY == 5 * 1024 * 1024
    limits.too_large(4_000_000)
    assert limits.max_bytes == 2_000_000
    limits.too_large(4_500_000)
    assert limits.max_bytes == 2_000_000
    for _ in range(20):
        limits.too_large(limits.max_bytes)
    assert limits.max_bytes == MIN_BODY
