"""Relations between the elements of a lookup table (document 3 §5): errors and warnings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.flattening.lookup import Hierarchy, find_cycles, is_prefix, read_lookup
from tests.tasks.flattening.lookups import URL, Json, element, lookup_of, table, write


def errors(directory: Path, elements: Json) -> list[tuple[str, str]]:
    lookup, found, _ = read_lookup(write(directory, [table(elements)]))
    assert (lookup is None) == bool(found)
    return [(finding.reference, finding.message.removeprefix(f"table {URL}: ")) for finding in found]


def warnings(directory: Path, elements: Json) -> list[str]:
    lookup, found, told = read_lookup(write(directory, [table(elements)]))
    assert found == []
    assert lookup is not None
    return [warning.replace(f"lookup table {URL}, ", "") for warning in told]


def test_an_element_that_two_list_is_an_error_that_names_both(tmp_path: Path) -> None:
    elements = {"a": element({}, "a.c"), "b": element({}, "a.c"), "a.c": element(parent="a")}
    assert errors(tmp_path, elements) == [("lookup-multiple-parents", "element a.c: is listed as a child by a, b")]


@pytest.mark.parametrize("length", [1, 2, 5])
def test_elements_below_themselves_are_an_error_that_tells_the_way(tmp_path: Path, length: int) -> None:
    names = [f"c{number}" for number in range(length)]
    elements = {name: element({}, after) for name, after in zip(names, [*names[1:], names[0]], strict=True)}
    way = " → ".join([*names, names[0]])
    assert errors(tmp_path, elements) == [("lookup-child-cycle", f"element c0: is below itself: {way}")]


def test_a_cycle_of_parents_that_no_list_confirms_is_an_error_as_well(tmp_path: Path) -> None:
    ((reference, _),) = errors(tmp_path, {"a": element(parent="b"), "b": element(parent="a")})
    assert reference == "lookup-child-cycle"


def test_every_cycle_is_told(tmp_path: Path) -> None:
    elements = {"a": element({}, "b"), "b": element({}, "a"), "c": element({}, "c")}
    assert [reference for reference, _ in errors(tmp_path, elements)] == ["lookup-child-cycle"] * 2


def test_elements_that_nest_without_end_are_an_error(tmp_path: Path) -> None:
    names = ["a" + ".a" * number for number in range(18)]
    elements = {name: element({}, *names[number + 1 : number + 2]) for number, name in enumerate(names[:17])}
    assert errors(tmp_path, elements | {names[16]: element()}) == []
    assert errors(tmp_path, elements | {names[17]: element()}) == [
        ("lookup-schema-violation", f"element {names[17]}: has more than 16 elements above it")
    ]


def test_a_child_without_an_entry_is_a_warning_and_is_left_out(tmp_path: Path) -> None:
    elements = {"a": element({}, "a.b", "a.c"), "a.c": element()}
    assert warnings(tmp_path, elements) == ["unresolved-child: element a: the child a.b has no entry in this table"]
    assert lookup_of(tmp_path, table(elements))[URL].elements["a"].children == ("a.c",)


@pytest.mark.parametrize(
    ("elements", "message", "parent"),
    [
        (
            {"a": element({}, "a.c"), "b": element(), "a.c": element(parent="b")},
            "its parent is b, but a lists it as a child; the list counts",
            "a",
        ),
        (
            {"a": element(), "a.c": element(parent="a")},
            "its parent a does not list it as a child; it is taken as one",
            "a",
        ),
        ({"a.c": element(parent="a")}, "its parent a has no entry in this table; it is taken as having none", None),
    ],
)
def test_a_parent_that_does_not_agree_is_a_warning_that_says_what_counts(
    tmp_path: Path, elements: Json, message: str, parent: str | None
) -> None:
    assert warnings(tmp_path, elements) == [f"parent-mismatch: element a.c: {message}"]
    read = lookup_of(tmp_path, table(elements))[URL].elements
    assert read["a.c"].parent == parent
    assert [key for key, item in read.items() if "a.c" in item.children] == ([parent] if parent else [])


def test_an_id_that_does_not_continue_its_parents_is_a_warning(tmp_path: Path) -> None:
    elements = {"a.b": element({}, "a.bc", "a.b.c", "a.b:c"), "a.bc": element(), "a.b.c": element(), "a.b:c": element()}
    assert warnings(tmp_path, elements) == [
        "parent-not-prefix: element a.bc: its id does not continue the id of its parent a.b"
    ]


@pytest.mark.parametrize(
    ("parent", "child", "continues"),
    [
        ("Condition.code", "Condition.code.coding", True),
        ("Condition.code.coding", "Condition.code.coding:icd10", True),
        ("Observation.value[x]", "Observation.value[x]:valueQuantity", True),
        ("Condition.code.coding:icd10", "Condition.code.coding:icd10/sub", True),
        ("Condition.code", "Condition.codeX", False),
        ("Condition.code", "Condition.code", False),
        ("Condition.code.coding", "Condition.code", False),
    ],
)
def test_an_id_continues_another_at_the_border_of_a_part_or_a_slice(parent: str, child: str, continues: bool) -> None:
    assert is_prefix(parent, child) is continues


def test_warnings_alone_leave_the_file_usable(tmp_path: Path) -> None:
    path = write(tmp_path, [table({"a": element({}, "gone")})])
    assert len(read_lookup(path)[2]) == 1
    assert read_lookup(path)[0] is not None


NAMES = st.sampled_from([f"e{number}" for number in range(8)])
GRAPHS = st.dictionaries(NAMES, st.lists(NAMES, max_size=4, unique=True), max_size=8).map(
    lambda graph: graph | {child: graph.get(child, []) for children in graph.values() for child in children}
)


@given(GRAPHS)
def test_a_cycle_is_found_where_there_is_one_and_only_there(graph: dict[str, list[str]]) -> None:
    cycles = list(find_cycles(graph))
    for cycle in cycles:
        assert len(set(cycle)) == len(cycle)
        assert all(after in graph[name] for name, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    left = dict(graph)
    while free := [name for name, children in left.items() if not any(child in left for child in children)]:
        for name in free:
            del left[name]
    assert bool(left) == bool(cycles)


@given(GRAPHS, st.dictionaries(NAMES, NAMES, max_size=8))
def test_without_an_error_the_elements_are_a_forest_and_both_ends_agree(
    graph: dict[str, list[str]], parents: dict[str, str]
) -> None:
    hierarchy = Hierarchy({name: (graph[name], parents.get(name)) for name in graph})
    if hierarchy.errors:
        return
    edges = [(child, name) for name, children in hierarchy.children.items() for child in children]
    assert dict(edges) == hierarchy.parents
    assert len(edges) == len(hierarchy.parents)
    assert all(child in hierarchy.children[name] for name in graph for child in graph[name])


@pytest.mark.slow
def test_a_chain_of_fifty_thousand_elements_is_walked_without_recursion() -> None:
    chain = {f"e{number}": [f"e{number + 1}"] for number in range(50_000)} | {"e50000": ["e0"]}
    assert [len(cycle) for cycle in find_cycles(chain)] == [50_001]


def test_elements_that_many_ways_lead_to_are_walked_once() -> None:
    ladder = {f"{side}{step}": [f"a{step + 1}", f"b{step + 1}"] for step in range(60) for side in "ab"}
    assert list(find_cycles(ladder | {"a60": [], "b60": []})) == []
