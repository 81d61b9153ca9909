"""The order in which resources that refer to each other can be loaded."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from tasks.send.reference_order import dependency_order

graphs = st.integers(0, 9).flatmap(
    lambda size: st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), max_size=25).map(
        lambda edges: (size, edges)
    )
)


def reachable(start: str, targets: dict[str, list[str]]) -> set[str]:
    seen: set[str] = set()
    todo = [start]
    while todo:
        for target in targets.get(todo.pop(), []):
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return seen


@given(graphs)
def test_targets_come_first_and_exactly_the_circles_stay_together(graph: tuple[int, list[tuple[int, int]]]) -> None:
    size, edges = graph
    keys = [str(n) for n in range(size)]
    targets: dict[str, list[str]] = {key: [] for key in keys}
    for start, stop in edges:
        targets.setdefault(str(start), []).append(str(stop))
    inside = {key: [target for target in targets[key] if target in keys] for key in keys}
    groups = list(dependency_order(keys, lambda key: targets[key]))
    assert sorted(key for group in groups for key in group) == sorted(keys)
    place = {key: number for number, group in enumerate(groups) for key in group}
    reach = {key: reachable(key, inside) for key in keys}
    for key in keys:
        for target in inside[key]:
            assert place[target] <= place[key]
        for other in keys:
            together = other in reach[key] and key in reach[other]
            assert key == other or (place[key] == place[other]) == together


def test_a_long_chain_needs_no_recursion() -> None:
    length = sys.getrecursionlimit() * 5
    keys = [str(n) for n in range(length)]
    groups = list(dependency_order(keys, lambda key: [str(int(key) + 1)]))
    assert [group[0] for group in groups] == keys[::-1]
