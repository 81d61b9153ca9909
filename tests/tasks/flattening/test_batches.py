"""Batches of resources for one group."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tasks.flattening.batches import TAIL, Packer, RequestBatch, head, share

VIEW = {"resourceType": "V", "name": "n", "select": []}


def packed(raws: list[bytes], limit: int, skip: int = 0) -> list[RequestBatch]:
    packer = Packer(0, VIEW, limit, skip=skip)
    return [batch for raw in raws for batch in packer.add(f"r{len(raw)}", raw)] + packer.end()


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(1, 1500))
def test_batches_hold_every_resource_once_in_order_within_the_limit(sizes: list[int], limit: int) -> None:
    raws = [b'{"id":"%d","v":1.50,"x":"%b"}' % (n, b"x" * size) for n, size in enumerate(sizes)]
    batches = packed(raws, limit)
    found: list[bytes] = []
    for number, batch in enumerate(batches):
        body = json.loads(batch.body, parse_float=str)
        assert body["parameter"][0] == {"name": "viewDefinition", "resource": VIEW}
        assert batch.ordinal == number
        assert batch.resources == len(body["parameter"]) - 1 >= 1
        assert len(batch.body) <= limit or batch.resources == 1
        assert batch.body.startswith(head(VIEW))
        assert batch.body.endswith(TAIL)
        found += [raw for raw in raws if raw in batch.body]
    assert found == raws
    # Greedy: the first of the next batch would not have fitted.
    for one, following in pairwise(batches):
        start = len(head(VIEW)) + len(b',{"name":"resources","resource":')
        raw = following.body[start : following.body.index(b"}", start) + 1]
        assert len(one.body) + len(raw) + len(b',{"name":"resources","resource":}') > limit


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(1, 1500), st.integers(0, 10))
def test_what_is_skipped_changes_nothing_of_what_follows(sizes: list[int], limit: int, skip: int) -> None:
    raws = [b"{%b}" % (b"x" * size) for size in sizes]
    assert packed(raws, limit, skip) == packed(raws, limit)[skip:]


def test_every_group_has_an_equal_share() -> None:
    assert share(500 << 20, 4) == 125 << 20
    assert share(10, 0) == 10
