"""The division of a step's files among child runs (6-scale-out.md, *Configuration*)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.shared.errors import StorageError
from tasks.shared.shards import AUTO_BYTES, count_shards, divide, division_path, load_division, save_division

FILES = st.dictionaries(st.text(min_size=1, max_size=8), st.integers(0, 10**12), min_size=1, max_size=40)


@given(FILES, st.integers(1, 256), st.booleans())
def test_every_file_is_in_exactly_one_shard_and_no_shard_is_empty(
    files: dict[str, int], count: int, in_order: bool
) -> None:
    division = divide(files.items(), count, in_order=in_order)
    assert len(division.shards) == min(count, len(files))
    assert sorted((file.name, file.bytes) for shard in division.shards for file in shard.files) == sorted(files.items())
    assert all(shard.files for shard in division.shards)
    assert [shard.index for shard in division.shards] == list(range(len(division.shards)))


@given(FILES, st.integers(1, 16))
def test_shards_differ_by_the_largest_file_at_most(files: dict[str, int], count: int) -> None:
    sizes = [shard.bytes for shard in divide(files.items(), count).shards]
    assert max(sizes) - min(sizes) <= max(files.values())


@given(FILES, st.integers(1, 16))
def test_equal_input_gives_an_equal_division(files: dict[str, int], count: int) -> None:
    assert divide(files.items(), count) == divide(reversed(files.items()), count)


@given(FILES, st.integers(1, 16))
def test_in_order_the_shards_follow_each_other(files: dict[str, int], count: int) -> None:
    division = divide(files.items(), count, in_order=True)
    assert [file.name for shard in division.shards for file in shard.files] == [*files]


@pytest.mark.parametrize(
    ("sizes", "shards"),
    [
        ([5] * 8, [10] * 4),
        ([1, 1, 1, 10], [1, 1, 1, 10]),
        ([9, 1, 1, 9], [9, 1, 1, 9]),
        ([4, 4, 4, 4, 4], [4, 4, 8, 4]),
    ],
)
def test_in_order_the_shards_are_of_about_the_same_size(sizes: list[int], shards: list[int]) -> None:
    files = [(str(number), size) for number, size in enumerate(sizes)]
    assert [shard.bytes for shard in divide(files, 4, in_order=True).shards] == shards


def test_auto_is_one_shard_for_each_2_gb_and_64_at_most() -> None:
    assert [count_shards("auto", size) for size in (0, 1, AUTO_BYTES, AUTO_BYTES + 1, 10**15)] == [1, 1, 1, 2, 64]
    assert count_shards(7, 1) == 7


def test_the_division_is_kept_as_documented(tmp_path: Path) -> None:
    division = divide([("a.ndjson", 5), ("b.ndjson", 3), ("c.ndjson", 1)], 2)
    save_division(division, tmp_path, 2)
    path = tmp_path / ".results" / "2" / "shards.json"
    kept = json.loads(path.read_text())
    lines = b'{"name":"b.ndjson","bytes":3}\n{"name":"c.ndjson","bytes":1}\n'
    assert path == division_path(tmp_path, 2)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert kept["version"] == 1
    assert [shard["index"] for shard in kept["shards"]] == [0, 1]
    assert kept["shards"][1]["files"] == [{"name": "b.ndjson", "bytes": 3}, {"name": "c.ndjson", "bytes": 1}]
    assert kept["shards"][1]["sha256"] == hashlib.sha256(lines).hexdigest()
    assert load_division(tmp_path, 2) == division
    assert load_division(tmp_path, 3) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: kept["shards"][0]["files"].pop(),
        lambda kept: kept["shards"].reverse(),
        lambda kept: kept.update(version=2),
        lambda kept: kept["shards"].clear(),
        lambda kept: kept["shards"][1].update(kept["shards"][0], index=1),
        lambda kept: kept.pop("shards"),
    ],
)
def test_a_changed_division_is_refused(tmp_path: Path, damage: object) -> None:
    save_division(divide([("a", 5), ("b", 3), ("c", 1)], 2), tmp_path, 2)
    path = division_path(tmp_path, 2)
    kept = json.loads(path.read_text())
    damage(kept)  # type: ignore[operator]
    path.write_text(json.dumps(kept))
    with pytest.raises(StorageError, match="was changed") as caught:
        load_division(tmp_path, 2)
    assert caught.value.reference == "shards-damaged"
