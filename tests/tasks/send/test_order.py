"""The order of files (document 3 §2, §7: ``core.ndjson`` first and alone) and of resources that refer to each other."""

from __future__ import annotations

import sys
from pathlib import Path

import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tasks.send.order import dependency_order, stages
from tasks.shared.files.data_directory import data_files


def put(directory: Path, name: str, kind: str) -> None:
    line = b'{"resourceType":"%s","id":"x"}\n' % kind.encode()
    (directory / name).write_bytes(zstandard.compress(line) if name.endswith(".zst") else line)


def names(directory: Path) -> list[list[str]]:
    return [[path.name for path in stage] for stage in stages(data_files(directory))]


def test_core_is_first_and_alone_under_both_of_its_names(tmp_path: Path) -> None:
    put(tmp_path, "b.ndjson", "Bundle")
    put(tmp_path, "a.ndjson.zst", "Bundle")
    put(tmp_path, "core.ndjson.zst", "Bundle")
    assert names(tmp_path) == [["core.ndjson.zst"], ["a.ndjson.zst", "b.ndjson"]]


def test_files_of_one_type_are_sent_in_turn_targets_first_then_patient_files(tmp_path: Path) -> None:
    for name, kind in {
        "1": "Provenance",
        "2": "Observation",
        "3": "Encounter",
        "4": "Patient",
        "5": "Organization",
        "6": "Bundle",
        "7": "Unheard",
        "8": "Observation",
    }.items():
        put(tmp_path, f"{name}.ndjson", kind)
    assert names(tmp_path) == [[f"{n}.ndjson"] for n in "54328716"]


def test_a_file_without_lines_disturbs_nobody(tmp_path: Path) -> None:
    (tmp_path / "empty.ndjson").write_bytes(b"\n")
    assert names(tmp_path) == [["empty.ndjson"]]


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
